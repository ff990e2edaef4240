"""Bad configurations: each is refused before a job starts, by key, with the way out."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from config_edits import Raw, problems_of, put
from support import ROOT, config, dry_run
from unlearning_grid.config import load, load_file
from unlearning_grid.errors import UserError
from unlearning_grid.spec.stages import Specs


@pytest.mark.parametrize("name", ["config", "demo"])
def test_the_checkouts_grids_are_accepted(name: str) -> None:
    loaded = load_file(ROOT / "config" / f"{name}.yaml")
    assert len(loaded.cells) == {"config": 320, "demo": 16}[name]


def test_loading_leaves_the_given_mapping_as_it_was() -> None:
    raw = config("demo")
    before = copy.deepcopy(raw)
    load(raw)
    assert raw == before


# (edit, the one problem: how it begins, what else it says)
CASES: dict[str, tuple[str, Callable[[Raw], None], str, tuple[str, ...]]] = {
    "misspelt key at the top": (
        "demo",
        put("gpro", {}),
        'the top level: unknown key "gpro".',
        ('Did you mean "grpo"?', "'grpo'", "'warmup'"),
    ),
    "misspelt key in a block": (
        "demo",
        put("warmup/monitor/treshold", 0.1),
        'warmup.monitor: unknown key "treshold".',
        ('Did you mean "threshold"?', "'first_step'"),
    ),
    "misspelt key of a named entry": (
        "demo",
        put("models/tiny/dtpye", "float32"),
        'models.tiny: unknown key "dtpye".',
        ('Did you mean "dtype"?', "'build'"),
    ),
    "misspelt key in a list": (
        "demo",
        put("grid/exclude", [{"rewrad": "r0-lex"}]),
        'grid.exclude.0: unknown key "rewrad".',
        ('Did you mean "reward"?', "'seed'"),
    ),
    "unlike any key": (
        "demo",
        put("zzzzzz", 1),
        'the top level: unknown key "zzzzzz". Allowed:',
        ("'grid'",),
    ),
    "text for a number": (
        "demo",
        put("grpo/max_steps", "sixty"),
        "grpo.max_steps: 'sixty' is not of type 'integer'",
        (),
    ),
    "number that YAML reads as text": (
        "demo",
        put("grpo/learning_rate", "1e-5"),
        "grpo.learning_rate: '1e-5' is not of type 'number'",
        (),
    ),
    "block left empty": ("demo", put("grpo", None), "grpo: None is not of type 'object'", ()),
    "out of range": (
        "demo",
        put("grpo/num_generations", 1),
        "grpo.num_generations: 1 is less than the minimum of 2",
        (),
    ),
    "not a choice": (
        "demo",
        put("grid/inits", ["cold", "warn"]),
        "grid.inits.1: 'warn' is not one of ['cold', 'warm'].",
        ('Did you mean "warm"?',),
    ),
    "twice the same target": (
        "demo",
        put("grid/targets", ["bruce-lee", "bruce-lee"]),
        "grid.targets: ['bruce-lee', 'bruce-lee'] has non-unique elements",
        (),
    ),
    "missing block": (
        "demo",
        lambda raw: raw.pop("judges"),
        "the top level: missing ['judges']; add it",
        ("config/README.md",),
    ),
    "unknown size": (
        "config",
        put("grid/sizes", ["0.6b"]),
        'grid.sizes: "0.6b" is not one of ',
        ("Add it to `models`.",),
    ),
    "unknown reward": (
        "demo",
        put("grid/rewards", ["r0-lexx"]),
        'grid.rewards: "r0-lexx" is not one of ',
        ('Did you mean "r0-lex"?', "rewards/registry.py"),
    ),
    "unknown audit judge": (
        "demo",
        put("audit/judge", "adit"),
        'audit.judge: "adit" is not one of ',
        ('Did you mean "audit"?',),
    ),
    "unknown reward judge": (
        "demo",
        put("rewards/r2-rubric/judge", "rewrad"),
        'rewards.r2-rubric.judge: "rewrad" is not one of ',
        ('Did you mean "reward"?',),
    ),
    "unknown teacher": (
        "config",
        put("broad_answers/judge", "techer"),
        'broad_answers.judge: "techer" is not one of ',
        ('Did you mean "teacher"?',),
    ),
    "repository without a commit": (
        "config",
        lambda raw: raw["models"]["3b"].pop("revision"),
        "models.3b: missing `revision`; pin the commit of Qwen/Qwen2.5-3B-Instruct.",
        (),
    ),
    "branch for a commit": (
        "config",
        put("models/3b/revision", "main"),
        "models.3b.revision: 'main' does not match ",
        (),
    ),
    "two sources of a model": (
        "demo",
        put("models/tiny/path", "models/tiny"),
        "models.tiny: give exactly one of repo, path, build; found ['build', 'path'].",
        (),
    ),
    "detector without a commit": (
        "config",
        put("detector", {"repo": "some/detector"}),
        "detector: give exactly one of [['repo', 'revision'], ['train']]",
        (),
    ),
    "model folder that is not there": (
        "demo",
        put("models/tiny", {"path": "no/such/model"}),
        'models.tiny.path: no config.json in "no/such/model";',
        ("save_pretrained",),
    ),
    "missing prompt file": (
        "config",
        put("judges/audit/prompt_file", "config/prompts/none.txt"),
        'judges.audit.prompt_file: no file "config/prompts/none.txt"',
        (),
    ),
    "judge without a model": (
        "config",
        lambda raw: raw["judges"]["audit"].pop("model"),
        "judges.audit.model: missing; name the model.",
        (),
    ),
    "terms file that is not there": (
        "demo",
        put("resources/terms", "resources/none.yaml"),
        "resources.terms: ",
        ("none.yaml: No such file or directory", "relative to the checkout"),
    ),
    "exclusion that matches nothing": (
        "demo",
        put("grid/exclude", [{"init": "cold", "reward": "r0-lex"}, {"size": "tiny", "seed": 3}]),
        "grid.exclude.1: {'size': 'tiny', 'seed': 3} matches no cell;",
        ("correct or remove it",),
    ),
    "exclusions that leave nothing": (
        "demo",
        put("grid/exclude", [{"init": "cold"}, {"init": "warm"}]),
        "grid.exclude: nothing is left of the grid;",
        (),
    ),
    "batch that groups do not fill": (
        "demo",
        put("grpo/batch_size", 60),
        "grpo.batch_size: 60 completions are not a multiple of num_generations 8",
        (),
    ),
    "batch that a target cannot fill": (
        "demo",
        put("grpo/batch_size", 2048),
        "grpo.batch_size: 256 prompts per rollout, but a target has 203;",
        ("lower batch_size",),
    ),
    "micro batch": (
        "demo",
        put("grpo/micro_batch_size", 24),
        "grpo.micro_batch_size: 24 does not divide batch_size 64",
        (),
    ),
    "checkpoint inside a rollout": (
        "demo",
        put("grpo/save_steps", 5),
        "grpo.save_steps: 5 is not a multiple of num_iterations 2;",
        (),
    ),
    "end inside a rollout": (
        "demo",
        put("grpo/max_steps", 61),
        "grpo.max_steps: 61 is not a multiple of num_iterations 2;",
        (),
    ),
    "nucleus of an engine": (
        "demo",
        lambda raw: raw["grpo"].update(use_vllm=True, top_p=0.9),
        "grpo.top_p: 0.9 with grpo.use_vllm;",
        ("Set it to 1.",),
    ),
    "engine without log-probabilities to compare with": (
        "demo",
        lambda raw: raw["grpo"].update(use_vllm=True, num_iterations=1),
        "grpo.num_iterations: 1 with grpo.use_vllm;",
        ("Raise it.",),
    ),
    # 203 prompts // 8 a rollout = 25 rollouts, two steps each
    "end before the first epoch": (
        "demo",
        put("grpo/max_steps", 48),
        "grpo.max_steps: 48 steps end before the no-learning rule judges the first epoch "
        "(25 rollouts x 2 steps, timing before-update: at step 50)",
        ("raise it", "grpo.no_learning.enabled"),
    ),
    # 10 epochs x ceil(24 / 16) batches
    "monitor after the end": (
        "config",
        put("warmup/monitor/first_step", 21),
        "warmup.monitor.first_step: 21 is past the last step (20 = epochs x batches);",
        (),
    ),
    "embedded world's model without the world": (
        "config",
        put("models/7b", {"build": "world"}),
        "models.7b.build: 'world' needs `data.source: world`.",
        (),
    ),
    "world's answers without the world": (
        "config",
        put("broad_answers/provider", "rules"),
        "broad_answers.provider: rules knows the embedded world only;",
        (),
    ),
    "answers without a file": (
        "config",
        put("broad_answers/provider", "answers"),
        'broad_answers.file: "None": no such file; name JSON Lines with prompt and answer.',
        (),
    ),
    "tokenizer of an unknown size": (
        "demo",
        put("detector/train/size", "tny"),
        'detector.train.size: "tny" is not one of ',
        ('Did you mean "tiny"?',),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_problem_is_named_with_its_key_and_the_fix(case: str) -> None:
    name, edit, beginning, parts = CASES[case]
    found = problems_of(name, edit)
    assert len(found) == 1, found
    assert found[0].startswith(beginning), found[0]
    for part in parts:
        assert part in found[0], found[0]


@pytest.mark.parametrize("size", [50, 52, 150])
def test_steps_that_reach_the_first_epoch_are_accepted(size: int) -> None:
    raw = config("demo")
    raw["grpo"]["max_steps"] = size
    assert load(raw)["grpo"]["max_steps"] == size


def test_without_the_no_learning_rule_a_run_may_be_short() -> None:
    raw = config("demo")
    raw["grpo"] |= {"max_steps": 2, "no_learning": {"enabled": False}}
    assert load(raw)["grpo"]["max_steps"] == 2


def test_only_grids_that_use_the_engine_have_its_settings_in_their_specs() -> None:
    cell = {"size": "tiny", "target": "bruce-lee", "init": "cold", "reward": "r0-lex", "seed": 0}
    found = []
    for changes in ({}, {"vllm_memory_share": 0.5}, {"use_vllm": True}):
        raw = config("demo")
        raw["grpo"] |= changes
        settings = Specs(load(raw)).spec("train_grpo", **cell)["settings"]
        found.append({key: settings[key] for key in settings if "vllm" in key})
    assert found == [{}, {}, {"use_vllm": True}], "its share of the memory is operational"


def test_judged_as_late_as_the_study_did_a_run_needs_a_rollout_more() -> None:
    raw = config("demo")
    raw["grpo"] |= {"max_steps": 50, "no_learning": {"timing": "paper"}}
    with pytest.raises(UserError, match="timing paper: at step 51"):
        load(raw)
    raw["grpo"]["max_steps"] = 52
    assert load(raw)["grpo"]["no_learning"]["timing"] == "paper"


def test_an_unknown_target_is_named_for_each_file_that_lacks_it() -> None:
    found = problems_of("demo", put("grid/targets", ["bruce-le"]))
    files = ("resources/targets.yaml", "resources/demo/forbidden_terms.yaml")
    assert len(found) == 2
    for problem, file in zip(found, files, strict=True):
        assert problem.startswith(f'grid.targets (in {file}): "bruce-le" is not one of ')
        assert 'Did you mean "bruce-lee"?' in problem
        assert problem.endswith(f"Add it to {file}.")


def test_all_problems_of_form_are_listed_at_once() -> None:
    edits = [put("gpro", {}), put("grpo/max_steps", "x"), put("grid/seeds", [-1])]
    found = problems_of("demo", *edits)
    assert [problem.partition(":")[0] for problem in found] == [
        "grid.seeds.0",
        "grpo.max_steps",
        "the top level",
    ]


def test_all_problems_of_fit_are_listed_at_once() -> None:
    edits = [
        put("grid/rewards", ["r2-rubric", "r9"]),
        put("audit/judge", "none"),
        put("grpo/max_steps", 3),
    ]
    found = problems_of("demo", *edits)
    assert [problem.partition(":")[0] for problem in found] == [
        "grid.rewards",
        "audit.judge",
        "grpo.max_steps",
        "grpo.max_steps",
    ]


def test_snakemake_says_it_once_without_a_traceback_and_makes_nothing(tmp_path: Path) -> None:
    raw = config("demo")
    raw["gpro"] = raw.pop("grpo")
    directory = tmp_path / "run"
    done = dry_run(raw, directory)
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert said.count('unknown key "gpro". Did you mean "grpo"?') == 1
    assert "Traceback" not in said and "UserError" not in said
    assert list(directory.rglob("*")) == []
