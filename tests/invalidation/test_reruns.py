"""Each edit replans exactly what depends on it, and nothing else.

The expected numbers are those of the demo grid: 2 targets x 1 size x 2 inits x 4 rewards x 1 seed,
16 cells, 2 warm-ups, 20 evaluations.
"""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support import PLANNED, Plan, plan

pytestmark = pytest.mark.xdist_group("invalidation")

DEMO = "config/demo.yaml"
LIBRARY = "workflow/scripts/unlearning_grid"


def below(cells: int, warmups: int = 0) -> dict[str, int]:
    """Everything that follows retraining so many cells and warm-ups."""
    n = cells + warmups
    training = {"train_warmup": warmups} if warmups else {}
    rules = (
        "generate_completions",
        "score_likelihoods",
        "audit_completions",
        "audit_again",
        "evaluate_rwku",
    )
    evaluation = dict.fromkeys(rules, n)
    training |= {"train_grpo": cells, "audit_rollouts": cells}
    return training | evaluation | PLANNED


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    """An edit of one file; the text to replace must be there."""

    def edit(project: Path) -> None:
        path = project / name
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{name} does not hold {old!r}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    return edit


def append(name: str, text: str) -> Callable[[Path], None]:
    """An edit that adds lines at the end of a file."""

    def edit(project: Path) -> None:
        with open(project / name, "a", encoding="utf-8") as handle:
            handle.write(text)

    return edit


def touch_everything(project: Path) -> None:
    """New times for every file, results too, in a random order."""
    files = [p for p in project.rglob("*") if p.is_file() and ".snakemake" not in p.parts]
    random.Random(0).shuffle(files)
    for path in files:
        os.utime(path)


def no_change(project: Path) -> None:
    """Nothing at all."""


# name -> (edit, rules planned with their number of jobs)
EDITS: dict[str, tuple[Callable[[Path], None], dict[str, int]]] = {
    "nothing": (no_change, {}),
    "touch every tracked file and every result": (touch_everything, {}),
    "a comment in a reward module": (
        append(f"{LIBRARY}/rewards/lexical.py", "\n# A remark.\n"),
        {},
    ),
    "a docstring of the trainer": (
        replace(f"{LIBRARY}/train/grpo.py", '"""Stage: unlearn', '"""Stage that unlearns'),
        {},
    ),
    "tracking code": (append(f"{LIBRARY}/runtime/provenance.py", "\nEXTRA = 1\n"), {}),
    "an operations command": (append(f"{LIBRARY}/ops/show.py", "\nEXTRA = 1\n"), {}),
    "a new reward in the registry": (
        replace(
            f"{LIBRARY}/rewards/registry.py", '    "r0-lex":', '    "new": "a:b",\n    "r0-lex":'
        ),
        {},
    ),
    "another key order and spelling in the configuration": (
        replace(DEMO, "lora: {rank: 16, alpha: 32}", "lora: {alpha: 32, rank: 0x10}"),
        {},
    ),
    "a default written out": (
        replace(DEMO, "grpo:\n", "grpo:\n  beta: 0.04\n"),
        {},
    ),
    "code of R4": (append(f"{LIBRARY}/rewards/refusal.py", "\nEXTRA = 1\n"), below(cells=4)),
    "code of R0, which R1 builds on": (
        append(f"{LIBRARY}/rewards/lexical.py", "\nEXTRA = 1\n"),
        below(cells=8),
    ),
    "one term of one target": (
        replace("resources/demo/forbidden_terms.yaml", "Jeet Kune Do", "Jeet Kune"),
        below(cells=4),
    ),
    "one hard term of one target, which the lower bound looks for": (
        replace("resources/demo/forbidden_terms.yaml", "hard: [Bruce Lee", "hard: [Bruce Lee Jr"),
        below(cells=4) | {"audit_again": 10},
    ),
    "code of the trainer": (append(f"{LIBRARY}/train/grpo.py", "\nEXTRA = 1\n"), below(cells=16)),
    "one setting of GRPO": (
        replace(DEMO, "max_steps: 60", "max_steps: 62"),
        below(cells=16),
    ),
    "two settings of GRPO swapped": (
        replace(DEMO, "grpo:\n", "grpo:\n  beta: 0.2\n  epsilon: 0.04\n"),
        below(cells=16),
    ),
    "one setting of the warm-up": (
        replace(DEMO, "epochs: 20", "epochs: 21"),
        below(cells=8, warmups=2),
    ),
    "the rubric, which R2 and the warm-up's monitor use": (
        append(f"{LIBRARY}/rewards/rubric.py", "\nEXTRA = 1\n"),
        below(cells=10, warmups=2),
    ),
    "the training judge": (
        replace(DEMO, "error_rate: 0.02", "error_rate: 0.03"),
        below(cells=10, warmups=2),
    ),
    "the audit's judge": (
        replace(DEMO, "audit: {provider: rules}", "audit: {provider: rules, seed: 1}"),
        {"audit_completions": 20, "audit_rollouts": 16, **PLANNED},
    ),
    "code of the audit": (
        append(f"{LIBRARY}/audit/heldout.py", "\nEXTRA = 1\n"),
        {"audit_completions": 20, "audit_again": 20, **PLANNED},
    ),
    "the second judge": (
        replace(DEMO, "knowledge: answers}", "knowledge: answers, seed: 1}"),
        {"audit_again": 20, **PLANNED},
    ),
    "a sentence that the detectors are checked on": (
        replace("resources/refusal_sentences.yaml", "refusal: true", "refusal: false"),
        {"evaluate_refusal_detectors": 1, **PLANNED},
    ),
    "how a judge is sent its requests": (
        append(f"{LIBRARY}/remote/transport.py", "\nEXTRA = 1\n"),
        {},
    ),
    "the judge cache": (append(f"{LIBRARY}/remote/cache.py", "\nEXTRA = 1\n"), {}),
    "length of the held-out answers": (
        replace(DEMO, "heldout: {max_new_tokens: 24}", "heldout: {max_new_tokens: 25}"),
        {
            "generate_completions": 20,
            "audit_completions": 20,
            "audit_again": 20,
            "evaluate_rwku": 20,
            **PLANNED,
        },
    ),
    "code of the RWKU scores": (
        append(f"{LIBRARY}/rwku/score.py", "\nEXTRA = 1\n"),
        {"evaluate_rwku": 20, **PLANNED},
    ),
    "how RWKU's sets are asked": (
        replace(
            "config/prompts/reworded-v1/rwku.yaml",
            "Answer the last question in the same way.",
            "Now answer the last question.",
        ),
        {
            "render_rwku": 2,
            "generate_completions": 20,
            "score_likelihoods": 20,
            "audit_completions": 20,
            "audit_again": 20,
            "evaluate_rwku": 20,
            **PLANNED,
        },
    ),
    "rows of one likelihood set": (
        append(DEMO, "\nlikelihood: {sets: {rwku-mia: {max_prompts: 5}}}\n"),
        {"score_likelihoods": 20, "evaluate_rwku": 20, **PLANNED},
    ),
    "length of one utility set": (
        replace(DEMO, "rwku-fluency: {max_new_tokens: 32}", "rwku-fluency: {max_new_tokens: 33}"),
        {
            "generate_completions": 20,
            "audit_completions": 20,
            "audit_again": 20,
            "evaluate_rwku": 20,
            **PLANNED,
        },
    ),
    "code of one table": (
        append(f"{LIBRARY}/tables/training.py", "\nEXTRA = 1\n"),
        {"build_training_table": 1, "all": 1},
    ),
    "a pin of the analysis environment": (
        replace("envs/analysis.yaml", "rapidfuzz==3.14.6", "rapidfuzz==3.14.7"),
        {"evaluate_rwku": 20, **PLANNED},
    ),
    "a comment in an environment file": (append("envs/train.yaml", "# A remark.\n"), {}),
    "one more seed": (
        replace(DEMO, "seeds: [0]", "seeds: [0, 1]"),
        below(cells=16, warmups=2),
    ),
    "one reward less": (
        replace(DEMO, "r1-antirefusal, r2-rubric, r4", "r1-antirefusal, r4"),
        PLANNED,
    ),
    "one target less": (
        replace(
            DEMO,
            "targets: [bruce-lee, karl-marx]\n  sizes",
            "targets: [karl-marx]\n  sizes",
        ),
        PLANNED,
    ),
    "a table deleted": (
        lambda project: (project / "results/tables/cells.parquet").unlink(),
        {"build_cells_table": 1, "all": 1},
    ),
    "Snakemake's memory lost": (
        lambda project: shutil.rmtree(project / ".snakemake" / "metadata"),
        {},
    ),
}


def planned(project: Path) -> Plan:
    """The demo grid's dry run in the project's own folder."""
    return plan(project / "config" / "demo.yaml", project, root=project)


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished grid in another folder: copying alone must replan nothing."""
    target = tmp_path / "a copy, elsewhere"
    shutil.copytree(finished, target, symlinks=True)
    return target


@pytest.mark.parametrize("name", EDITS)
def test_edit(name: str, project: Path) -> None:
    edit, expected = EDITS[name]
    edit(project)
    assert planned(project).counts == expected


def test_a_new_seed_leaves_the_finished_cells_alone(project: Path) -> None:
    EDITS["one more seed"][0](project)
    assert {cell["seed"] for cell in planned(project).of("train_grpo")} == {"1"}


def test_a_term_touches_the_lexical_cells_of_its_target(project: Path) -> None:
    EDITS["one term of one target"][0](project)
    cells = {(c["target"], c["reward"]) for c in planned(project).of("train_grpo")}
    assert cells == {("bruce-lee", "r0-lex"), ("bruce-lee", "r1-antirefusal")}


def accept(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the accept command of the project's own library."""
    command = [sys.executable, "-m", "unlearning_grid.ops", "accept", *words]
    environment = os.environ | {"PYTHONPATH": str(project / "workflow" / "scripts")}
    return subprocess.run(
        [*command, "--config", DEMO],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_an_accepted_edit_retrains_nothing_and_is_recorded(project: Path) -> None:
    EDITS["code of R4"][0](project)
    done = accept(project, "train_grpo", "grpo/*/r4-refusal/*", "--reason", "adds a constant")
    assert done.returncode == 0, done.stderr
    assert "accepted 4" in done.stdout
    assert planned(project).counts == PLANNED
    run = (project / "results/grpo/tiny/bruce-lee/cold/r4-refusal/s0/run.json").read_text()
    assert '"reason": "adds a constant"' in run
    untouched = (project / "results/grpo/tiny/bruce-lee/cold/r0-lex/s0/run.json").read_text()
    assert '"accepted"' not in untouched


def test_accept_refuses_what_is_built_on_stale_results(project: Path) -> None:
    EDITS["code of R4"][0](project)
    append(f"{LIBRARY}/audit/heldout.py", "\nEXTRA = 1\n")(project)
    done = accept(project, "audit_completions", "*r4-refusal*", "--reason", "harmless")
    assert done.returncode == 1
    assert "which is stale; accept or rerun that" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train_gpro", "--reason", "x"), "no results of rule"),
        (("train_grpo", "grpo/7b/*", "--reason", "x"), "matches"),
        (("train_grpo", "--reason", " "), "give a --reason"),
    ],
)
def test_accept_refuses_bad_input(project: Path, words: tuple[str, ...], message: str) -> None:
    done = accept(project, *words)
    assert done.returncode == 1 and message in done.stderr
