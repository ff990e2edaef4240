"""Profiles: what each may hold, and that the workflow plans under each of them."""

import re
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from rulefiles import local_rules
from support import ROOT, Plan, config, plan, snakemake

pytestmark = pytest.mark.xdist_group("dag")

NAMES = ("default", "demo", "slurm")
GPU_RULES = {
    "train_warmup",
    "train_grpo",
    "generate_base_rows",
    "generate_completions",
    "sample_completions",
    "score_likelihoods",
}
LOCAL = local_rules() | {"all"}


def profile(name: str) -> dict:
    return yaml.safe_load((ROOT / "profiles" / name / "config.yaml").read_text(encoding="utf-8"))


def every_rule() -> dict:
    """The demo's grid with vLLM and a reward with weighted terms: they run every rule."""
    changed = config("demo")
    changed["generate"]["backend"] = "vllm"
    changed["grid"]["rewards"] += ["pagerank-lex"]
    changed["term_weights"] = {"size": "tiny"}
    return changed


@pytest.fixture(scope="module")
def on_slurm(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Every rule under the cluster's profile."""
    return plan(
        every_rule(),
        tmp_path_factory.mktemp("slurm"),
        extra=("--profile", "profiles/slurm"),
    )


def test_these_profiles_exist() -> None:
    assert sorted(p.parent.name for p in ROOT.glob("profiles/*/config.yaml")) == sorted(NAMES)


@pytest.mark.parametrize("pair", list(combinations(NAMES, 2)), ids="-".join)
def test_no_key_stands_in_two_profiles(pair: tuple[str, str]) -> None:
    assert not set(profile(pair[0])) & set(profile(pair[1]))


def test_what_decides_a_rerun_stands_in_the_profile_that_is_always_loaded() -> None:
    assert profile("default")["rerun-triggers"] == ["mtime", "params", "input"]


def test_slurm_resources_name_rules_of_the_workflow(on_slurm: Plan) -> None:
    named = set(profile("slurm")["set-threads"]) | set(profile("slurm")["set-resources"])
    assert named <= on_slurm.rules


def test_each_gpu_rule_asks_for_one_h100_and_no_other_rule_for_any(on_slurm: Plan) -> None:
    for (rule, _), resources in on_slurm.resources.items():
        asked = resources.get("gres")
        assert asked == ("gpu:h100:1" if rule in GPU_RULES else None), rule
        assert not {"gpu", "gpus", "gpu_model"} & set(resources), rule


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (
            "Two GPUs of one node",
            {"7b": {"gres": "gpu:h100:2", "processes": "2"}, "0.5b": {"gres": "gpu:h100:1"}},
        ),
        (
            "Four cells of the smallest",
            {"0.5b": {"gres": "shard:1", "gpu_share": "4"}, "7b": {"gres": "gpu:h100:1"}},
        ),
    ],
)
def test_an_example_for_gpus_works_when_it_is_taken_out_of_its_comment(
    shown: str, expected: dict, tmp_path: Path
) -> None:
    text = (ROOT / "profiles" / "slurm" / "config.yaml").read_text(encoding="utf-8")
    example = re.search(rf"^    # {shown}.*\n((?:    # \w+: .*\n){{2}})", text, re.MULTILINE)
    assert example
    lines = example[1].replace("    # ", "    ")
    rule = re.search(r"^  train_grpo:\n    gres: .*\n", text, re.MULTILINE)
    assert rule
    (tmp_path / "profile").mkdir()
    changed = text.replace(rule[0], "  train_grpo:\n" + lines)
    (tmp_path / "profile/config.yaml").write_text(changed, encoding="utf-8")
    grid = config("config")
    grid["grid"] |= {"targets": grid["grid"]["targets"][:1], "sizes": ["0.5b", "7b"]}
    made = plan(grid, tmp_path / "w", extra=("--profile", str(tmp_path / "profile")))
    seen = set()
    for (rule_name, wildcards), resources in made.resources.items():
        if rule_name == "train_grpo":
            size = dict(wildcards)["size"]
            seen.add(size)
            assert expected[size].items() <= resources.items()
    assert seen == {"0.5b", "7b"}


def test_time_and_memory_follow_the_size_and_the_attempt(tmp_path: Path) -> None:
    grid = config("config")
    grid["grid"] |= {"targets": grid["grid"]["targets"][:1], "sizes": ["0.5b", "7b"]}
    site = ("--default-resources", "slurm_account=mine", "slurm_partition=h100")
    extra = ("--profile", "profiles/slurm", *site)
    first = plan(grid, tmp_path / "w", extra=extra)
    third = plan(grid, tmp_path / "w", extra=(*extra, "--attempt", "3"))
    asked = {
        (rule, dict(wildcards)["size"]): (resources["runtime"], resources["mem_mb"])
        for (rule, wildcards), resources in first.resources.items()
        if rule in ("train_warmup", "train_grpo")
    }
    assert asked == {
        ("train_warmup", "0.5b"): ("60", "32000"),
        ("train_warmup", "7b"): ("120", "64000"),
        ("train_grpo", "0.5b"): ("240", "32000"),
        ("train_grpo", "7b"): ("480", "64000"),
    }
    for key, resources in first.resources.items():
        if key[0] in LOCAL:
            continue
        assert resources["slurm_account"] == "mine" and resources["slurm_partition"] == "h100"
        for name in ("runtime", "mem_mb"):
            assert int(third.resources[key][name]) == 3 * int(resources[name]), key


def test_the_slurm_profile_changes_no_job(on_slurm: Plan, tmp_path: Path) -> None:
    here = plan(every_rule(), tmp_path / "here")
    assert on_slurm.jobs == here.jobs
    assert on_slurm.inputs == here.inputs


def test_submitted_jobs_have_time_memory_account_and_partition(on_slurm: Plan) -> None:
    submitted = on_slurm.rules - LOCAL
    assert set(profile("slurm")["set-resources"]) == submitted | {"audit_samples"}  # its requests
    for (rule, _), resources in on_slurm.resources.items():
        if rule in submitted:
            assert {"runtime", "mem_mb", "slurm_account", "slurm_partition"} <= set(resources)


def test_jobs_that_ask_a_judge_share_the_limit_on_open_requests(on_slurm: Plan) -> None:
    limit = profile("slurm")["resources"]["judge_requests"]
    for (rule, wildcards), resources in on_slurm.resources.items():
        asks = "audit" in rule.partition("_")[0] or rule in ("write_broad_answers", "train_warmup")
        asks |= rule == "train_grpo" and dict(wildcards)["reward"] == "r2-rubric"
        asked = int(resources.get("judge_requests", 0))
        assert (asked > 0) == asks and asked <= limit, rule


def test_retries_stand_in_the_profile_only() -> None:
    assert profile("slurm")["retries"] >= 1
    for path in sorted((ROOT / "workflow" / "rules").glob("*.smk")):
        assert not re.search(r"^\s*retries:", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_demo_profile_brings_its_grid(tmp_path: Path) -> None:
    done = snakemake(["-n", "--profile", "profiles/demo"], tmp_path, ["all"])
    assert done.returncode == 0, done.stderr
    assert "grid: demo (16 cells)" in done.stdout


def test_another_grid_replaces_the_demo_profiles(tmp_path: Path) -> None:
    other = config("demo") | {"name": "another"}
    done = plan(other, tmp_path, extra=("--profile", "profiles/demo"))
    assert "grid: another (16 cells)" in done.text


def test_every_localrule_is_a_rule(tmp_path: Path) -> None:
    done = snakemake(["-n", "--profile", "profiles/demo"], tmp_path, ["all"])
    assert "localrules directive specifies" not in done.stdout + done.stderr


def test_a_cell_of_the_papers_grid_is_submitted_five_times_after_its_training(
    tmp_path: Path,
) -> None:
    grid = config("config")
    grid["grid"] |= {"targets": grid["grid"]["targets"][:1], "sizes": ["0.5b"]}
    made = plan(grid, tmp_path / "w", extra=("--profile", "profiles/slurm"))
    submitted: dict[str, set[str]] = {}
    for rule, wildcards in made.jobs:
        policy = dict(wildcards).get("policy", "")
        if rule not in LOCAL and policy.startswith("grpo/"):
            submitted.setdefault(policy, set()).add(rule)
    after = {"generate_completions", "sample_completions", "score_likelihoods"}
    after |= {"audit_completions", "audit_rollouts"}
    assert len(submitted) == 8
    assert all(rules == after for rules in submitted.values())
