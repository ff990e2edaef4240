"""The micro grid end to end: what it makes, and what becomes of it when things go wrong."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from safetensors.numpy import load_file

from integration.conftest import MICRO, run_micro
from support import ROOT, environment, snakemake

pytestmark = pytest.mark.xdist_group("micro")

TABLES = (
    "cells",
    "training",
    "heldout_audit",
    "heldout_audit_targets",
    "terminal_audit",
    "judge_agreement",
    "refusal_detectors",
    "rwku_core",
    "rwku_utility",
    "rwku_types",
)
COLD_LEX = "results/grpo/tiny/bruce-lee/cold/r0-lex/s0"
CELLS = [
    ("cold", "r0-lex"),
    ("cold", "r2-rubric"),
    ("warm", "r0-lex"),
    ("warm", "r2-rubric"),
]


def tables(directory: Path, folder: str = "results/tables") -> dict[str, Any]:
    """Every table by name."""
    return {name: pd.read_parquet(directory / folder / f"{name}.parquet") for name in TABLES}


def forget(directory: Path, result: str) -> None:
    """Delete a policy's training and everything that was made from it."""
    policy = result.removeprefix("results/")
    stages = ("completions", "likelihoods", "audit", "opinions/lower-bound/r0", "terminal", "rwku")
    for path in (result, *(f"results/{stage}/{policy}" for stage in stages)):
        shutil.rmtree(directory / path)
    shutil.rmtree(directory / "results/tables")
    shutil.rmtree(directory / "results/figures")


def test_every_cell_has_a_status_and_was_evaluated(micro):
    cells = tables(micro)["cells"]
    assert list(zip(cells["init"], cells["reward"], strict=True)) == CELLS
    assert set(cells["status"]) <= {"learned", "no-learning"}
    assert cells["evaluated"].all()
    assert (cells["steps"] == 6).all()


def test_cold_r2_has_nothing_to_select(micro):
    cells = tables(micro)["cells"].set_index(["init", "reward"])
    cell = cells.loc[("cold", "r2-rubric")]
    assert cell["status"] == "no-learning"
    assert cell["first_epoch_active_rate"] <= 0.05
    assert "over the first 3 rollouts" in cell["evidence"]


def test_training_changed_the_adapter_and_recorded_each_rollout_once(micro):
    folder = micro / COLD_LEX
    weights = load_file(folder / "adapter" / "adapter_model.safetensors")
    assert any(abs(w).max() > 0 for name, w in weights.items() if "lora_B" in name)
    assert sorted(p.name for p in (folder / "adapter").iterdir() if p.name[0] != ".") == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    rollouts: Any = pd.read_parquet(folder / "rollouts.parquet")
    assert len(rollouts) == 3 * 64
    assert not rollouts.duplicated(["rollout", "group", "sample"]).any()
    assert (rollouts.groupby(["rollout", "group"])["prompt_id"].nunique() == 1).all()
    assert rollouts["reward"].isin([0.0, 1.0]).all()
    assert rollouts["finish_reason"].isin(["stop", "length"]).all()
    kept = sorted(p.name for p in (folder / "adapters").iterdir() if p.name[0] != ".")
    assert kept == ["step-000002", "step-000004"], "the last one is the result"


def test_metrics_hold_what_the_figure_needs(micro):
    metrics: Any = pd.read_parquet(micro / COLD_LEX / "metrics.parquet")
    steps = metrics.groupby("name")["step"].apply(list)
    assert steps["kl"] == [1, 2, 3, 4, 5, 6]
    assert steps["reward"] == steps["active_group_rate"] == [1, 3, 5]
    assert metrics[(metrics["name"] == "kl") & (metrics["step"] == 1)]["value"].item() == 0.0


def test_heldout_table_has_every_policy_and_both_counts(micro):
    table = tables(micro)["heldout_audit"]
    rows = table[(table["population"] == "evaluated") & (table["metric"] == "semantic_leakage")]
    groups = list(zip(rows["kind"], rows["init"], rows["reward"], strict=True))
    assert [kind for kind, *_ in groups] == ["base", "warmup"] + ["grpo"] * 4
    assert [(i, r) for kind, i, r in groups if kind == "grpo"] == CELLS
    assert (rows["n"] == 1).all() and (rows["missing"] == 0).all()
    learned = table[(table["population"] == "learned") & (table["metric"] == "semantic_leakage")]
    stopped = learned[(learned["init"] == "cold") & (learned["reward"] == "r2-rubric")]
    assert stopped["n"].item() == 0 and stopped["cells_no_learning"].item() == 1


def test_the_last_rollouts_are_labelled_as_they_were_sampled(micro):
    """Three rollouts are all there are: every row of the run, each counted once."""
    labels: Any = pd.read_parquet(
        micro / "results/terminal/grpo/tiny/bruce-lee/cold/r0-lex/s0/on/bruce-lee/labels.parquet"
    )
    rollouts: Any = pd.read_parquet(micro / COLD_LEX / "rollouts.parquet")
    keys = ["rollout", "group", "sample", "prompt", "completion", "reward"]
    pd.testing.assert_frame_equal(labels[keys], rollouts[keys])
    same = labels.groupby(["prompt", "completion"])["class"].nunique()
    assert (same == 1).all(), "one text, one verdict"
    table = tables(micro)["terminal_audit"]
    rows = table[(table["population"] == "evaluated") & (table["metric"] == "semantic_leakage")]
    assert list(zip(rows["init"], rows["reward"], strict=True)) == CELLS
    cold = rows.iloc[0]
    assert cold["median"] == pytest.approx(labels["semantic_leakage"].mean())


def test_the_lower_bound_is_measured_against_the_oracle(micro):
    table = tables(micro)["judge_agreement"]
    pooled = table[table["kind"].isna()].set_index(["comparison", "label"])
    leaks = pooled.loc[("judges", "semantic_leakage")]
    assert (leaks["first"], leaks["second"]) == ("rules:oracle", "rules:lower-bound")
    assert leaks["n"] == 6 * 8 and leaks["missing"] == 0
    assert leaks["second_rate"] <= leaks["first_rate"], "a lower bound"
    broad = pooled.loc[("judges", "broad_topic_helpfulness")]
    assert broad["n"] == 0 and broad["missing"] == 6 * 8, "it cannot tell, and says so"
    assert pooled.loc[("detector", "refusal")]["n"] == 6 * 8


def test_the_detectors_are_checked_and_an_absent_one_is_missing_not_zero(micro):
    table = tables(micro)["refusal_detectors"]
    assert {"micro-refusal", "phrases"} <= set(table["detector"])
    garak = table[table["detector"] == "garak-refusal-detector"]
    if (garak["status"] == "missing").any():  # its weights are not on this machine
        assert garak[["flagged", "accuracy"]].isna().all(axis=None)
        assert "garak-llm/garak-refusal-detector" in garak["reason"].iloc[0]


def test_figure_and_csv_are_there(micro):
    png = micro / "results/figures/training_dynamics.png"
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and png.stat().st_size > 20_000
    text = (micro / "results/tables/cells.csv").read_text()
    assert text.splitlines()[0].startswith("size,target,init,reward,seed,policy,status")


def test_a_second_run_does_nothing(micro):
    before = {p: p.stat().st_mtime_ns for p in (micro / "results").rglob("*") if p.is_file()}
    done = run_micro(micro)
    assert done.returncode == 0 and "Nothing to be done" in done.stdout + done.stderr
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_a_changed_set_generates_itself_alone(micro_copy, tmp_path):
    changed = tmp_path / "changed.yaml"
    text = MICRO.read_text().replace(
        "heldout: {max_new_tokens: 24}", "heldout: {max_new_tokens: 8}"
    )
    changed.write_text(text)
    folder = "results/completions/base/tiny/on/bruce-lee"
    before: Any = pd.read_parquet(micro_copy / folder / "completions.parquet")
    words = ["--cores", "2", "--configfile", str(changed)]
    done = snakemake(words, micro_copy, [f"{folder}/manifest.json"])
    assert done.returncode == 0, done.stdout + done.stderr
    log = (micro_copy / folder / "generate_completions.log").read_text()
    # forget and neighbor twice, with and without the shipped penalty; reason, factuality, fluency
    assert log.count("kept from an earlier run") == 7
    after: Any = pd.read_parquet(micro_copy / folder / "completions.parquet")
    assert before[before["set"] == "heldout"]["tokens"].max() > 8
    assert after[after["set"] == "heldout"]["tokens"].max() == 8
    probes = [f[f["set"] != "heldout"].reset_index(drop=True) for f in (before, after)]
    pd.testing.assert_frame_equal(*probes)


def test_weighted_terms_are_embedded_ranked_and_paid_by(micro_copy, tmp_path):
    """pagerank-lex end to end: embeddings of the grid's own model, weights, rewards."""
    changed = tmp_path / "weighted.yaml"
    text = MICRO.read_text().replace("rewards: [r0-lex, r2-rubric]", "rewards: [pagerank-lex]")
    changed.write_text(text + "\nterm_weights: {size: tiny}\n")
    words = ["--cores", "2", "--configfile", str(changed)]
    cell = "results/grpo/tiny/bruce-lee/cold/pagerank-lex/s0"
    done = snakemake(words, micro_copy, [f"{cell}/manifest.json"])
    assert done.returncode == 0, done.stdout + done.stderr
    weights = json.loads(
        (micro_copy / "results/data/bruce-lee/term_weights/weights.json").read_text()
    )
    terms = yaml.safe_load((ROOT / "resources/demo/forbidden_terms.yaml").read_text())["bruce-lee"]
    assert list(weights) == [*terms["hard"], *terms["soft"]]
    assert max(weights.values()) == 1.0 and min(weights.values()) >= 0.0
    rollouts: Any = pd.read_parquet(micro_copy / cell / "rollouts.parquet")
    clean = rollouts[rollouts["matched_terms"] == ""]
    assert (clean["reward"] == 1.0).all()
    named = rollouts[rollouts["matched_terms"] == "Bruce Lee|Bruce|Lee"]
    once = weights["Bruce Lee"] + weights["Bruce"] + weights["Lee"]
    assert len(named) and named["reward"].max() == pytest.approx(math.exp(-once))


def test_the_last_checkpoint_is_not_resumed_past_the_end(micro, micro_copy):
    """Killed after the last step and before publishing: the same result, not a step more."""
    work = next((micro_copy / COLD_LEX / "work").glob("*/result")).parent
    expected = (micro / COLD_LEX / "manifest.json").read_bytes()
    forget(micro_copy, COLD_LEX)
    process = start_micro(micro_copy)
    deadline = time.monotonic() + 180
    while not (
        micro_copy / COLD_LEX / f"work/{work.name}/checkpoints/checkpoint-6/complete.json"
    ).exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (micro_copy / COLD_LEX / "manifest.json").exists()
    unlock(micro_copy)
    words = ["--cores", "2", "--configfile", str(MICRO)]
    done = snakemake(words, micro_copy, [f"{COLD_LEX}/manifest.json"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert (micro_copy / COLD_LEX / "manifest.json").read_bytes() == expected


def start_micro(directory: Path) -> subprocess.Popen[bytes]:
    """The micro grid in a process group of its own."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--directory", str(directory), "--cores", "1", "--configfile", str(MICRO)]
    command += ["--quiet", "all", "--", "all"]
    return subprocess.Popen(command, cwd=ROOT, env=environment(), start_new_session=True)


def unlock(directory: Path) -> None:
    """What a person does once after a controller was killed."""
    command = [sys.executable, "-m", "snakemake", "--unlock", "--configfile", str(MICRO)]
    command += ["--directory", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def test_sigkill_in_the_middle_of_grpo_resumes_to_equal_tables(micro, micro_copy):
    expected = tables(micro)
    forget(micro_copy, COLD_LEX)
    process = start_micro(micro_copy)
    deadline = time.monotonic() + 180
    while not list((micro_copy / COLD_LEX).glob("work/*/checkpoints/checkpoint-2/complete.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (micro_copy / COLD_LEX / "manifest.json").exists()

    unlock(micro_copy)
    done = run_micro(micro_copy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming from" in (micro_copy / COLD_LEX / "train_grpo.log").read_text()
    for name, table in tables(micro_copy).items():
        pd.testing.assert_frame_equal(table, expected[name])
    for name in ("manifest.json", "rollouts.parquet", "adapter/adapter_model.safetensors"):
        assert (micro_copy / COLD_LEX / name).read_bytes() == (
            micro / COLD_LEX / name
        ).read_bytes(), name
    run = json.loads((micro_copy / COLD_LEX / "run.json").read_text())
    events = [a.get("outcome", a["event"]) for a in run["attempts"]]
    assert events == ["start", "killed", "start", "finished"]


def test_partial_shows_a_cell_that_fails_for_good(micro, micro_copy, tmp_path):
    project = tmp_path / "project"
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("workflow", "config", "resources", "envs", "profiles"):
        shutil.copytree(ROOT / name, project / name, ignore=ignore)
    shutil.copy2(ROOT / "Snakefile", project)
    lexical = project / "workflow/scripts/unlearning_grid/rewards/lexical.py"
    text = lexical.read_text()
    broken = text.replace(
        "        hits = [", '        raise RuntimeError("induced")\n        hits = ['
    )
    assert broken != text
    lexical.write_text(broken)

    done = run_micro(micro_copy, "all", root=project)
    assert done.returncode != 0
    done = run_micro(micro_copy, "partial", root=project)
    assert done.returncode == 0, done.stdout + done.stderr
    found = tables(micro_copy, "results/partial/tables")
    cells = found["cells"].set_index(["init", "reward"])
    assert cells["status"].to_dict() == {
        ("cold", "r0-lex"): "failed",
        ("cold", "r2-rubric"): "no-learning",
        ("warm", "r0-lex"): "failed",
        ("warm", "r2-rubric"): "learned",
    }
    assert cells.loc[("cold", "r0-lex"), "evidence"] == "RuntimeError: induced"
    audit = found["heldout_audit"]
    row = audit[
        (audit["metric"] == "semantic_leakage")
        & (audit["population"] == "evaluated")
        & (audit["init"] == "cold")
        & (audit["reward"] == "r0-lex")
    ].iloc[0]
    assert row["n"] == 0 and row["cells_failed"] == 1 and pd.isna(row["median"])
    kept = found["heldout_audit_targets"]
    whole = tables(micro)["heldout_audit_targets"]
    kept, whole = (f[f["reward"] != "r0-lex"].reset_index(drop=True) for f in (kept, whole))
    pd.testing.assert_frame_equal(kept, whole)
    assert (micro_copy / "results/partial/figures/training_dynamics.png").is_file()
