"""Profiles: what each may hold, and that the workflow plans under each of them."""

import re
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from support import ROOT, Plan, config, plan, snakemake

pytestmark = pytest.mark.xdist_group("dag")

NAMES = ("default", "demo", "slurm")
GPU_RULES = {"train_warmup", "train_grpo", "generate_completions", "score_likelihoods"}


def profile(name: str) -> dict:
    return yaml.safe_load((ROOT / "profiles" / name / "config.yaml").read_text(encoding="utf-8"))


def every_rule() -> dict:
    """The demo's grid and a reward with weighted terms: together they run every rule."""
    changed = config("demo")
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


def test_the_example_for_two_gpus_gives_them_to_the_largest_model_alone(tmp_path: Path) -> None:
    text = (ROOT / "profiles" / "slurm" / "config.yaml").read_text(encoding="utf-8")
    shown = r'^    # (report_to: \w+|gres: ".*"|processes: ".*")'
    assert len(re.findall(shown, text, re.MULTILINE)) == 3
    lines = re.sub(shown, r"    \1", text, flags=re.MULTILINE)
    (tmp_path / "profile").mkdir()
    rule = re.search(r"^  train_grpo:\n    gres: .*\n", lines, re.MULTILINE)
    assert rule
    without = lines.replace(rule[0], "  train_grpo:\n")
    (tmp_path / "profile/config.yaml").write_text(without, encoding="utf-8")
    grid = config("config")
    grid["grid"] |= {"targets": grid["grid"]["targets"][:1], "sizes": ["1.5b", "7b"]}
    made = plan(grid, tmp_path / "w", extra=("--profile", str(tmp_path / "profile")))
    cells = {k: v for k, v in made.resources.items() if k[0] == "train_grpo"}
    assert cells
    for (_, wildcards), resources in cells.items():
        number = "2" if dict(wildcards)["size"] == "7b" else "1"
        asked = {name: resources[name] for name in ("gres", "processes", "report_to")}
        assert asked == {
            "gres": f"gpu:h100:{number}",
            "processes": number,
            "report_to": "tensorboard",
        }


def test_the_slurm_profile_changes_no_job(on_slurm: Plan, tmp_path: Path) -> None:
    here = plan(every_rule(), tmp_path / "here")
    assert on_slurm.jobs == here.jobs
    assert on_slurm.inputs == here.inputs


def test_slurm_jobs_have_time_memory_account_and_partition(on_slurm: Plan) -> None:
    for (rule, _), resources in on_slurm.resources.items():
        if rule != "all":
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
