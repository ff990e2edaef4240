"""The micro grid through profiles/slurm, site values on the command line: what each job got."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from slurm.runs import ledger, run, slurm_jobs

pytestmark = pytest.mark.slurm

# Minutes, megabytes, GPUs and jobs by rule, at the first attempt, for a small size.
GIVEN = {
    "build_demo_world": (60, 8000, 0, 1),
    "train_refusal_detector": (60, 16000, 0, 1),
    "write_broad_answers": (60, 8000, 0, 1),
    "train_warmup": (60, 32000, 1, 1),
    "train_grpo": (240, 32000, 1, 4),
    "generate_completions": (30, 32000, 1, 6),
    "sample_completions": (30, 32000, 1, 6),
    "score_likelihoods": (30, 32000, 1, 6),
    "audit_completions": (60, 8000, 0, 6),
    "audit_again": (60, 8000, 0, 6),
    "audit_rollouts": (90, 8000, 0, 4),
    "evaluate_refusal_detectors": (30, 16000, 0, 1),
}


def jobs_of(finished: Path, rule: str) -> list[dict[str, str]]:
    """Slurm's jobs of one rule."""
    return [job for job in slurm_jobs(finished) if job["Rule"] == f"rule_{rule}"]


def megabytes(text: str) -> int:
    """Slurm's 8000M or 62.50G."""
    return round(float(text[:-1]) * {"M": 1, "G": 1024}[text[-1]])


def minutes(text: str) -> int:
    """Slurm's hh:mm:ss."""
    hours, rest, _ = text.split(":")
    return 60 * int(hours) + int(rest)


def runs(finished: Path) -> dict[str, dict[str, Any]]:
    """Number of the Slurm job -> run.json of the result that it made."""
    found = [json.loads(path.read_text()) for path in (finished / "results").rglob("run.json")]
    return {r["provenance"]["slurm_job"]: r for r in found if r["provenance"]["slurm_job"]}


def test_every_table_is_there_and_every_cell_was_evaluated(finished: Path) -> None:
    cells: Any = pd.read_parquet(finished / "results/tables/cells.parquet")
    assert len(cells) == 4 and cells["evaluated"].all()
    names = {path.stem for path in (finished / "results/tables").glob("*.parquet")}
    assert {"training", "heldout_audit", "terminal_audit", "judge_agreement"} <= names
    assert {"leak_at_k", "sampled_audit"} <= names
    assert {"refusal_detectors", "rwku_core", "rwku_utility", "rwku_types"} <= names
    assert (finished / "results/figures/training_dynamics.png").is_file()


@pytest.mark.parametrize("rule", sorted(GIVEN))
def test_each_job_gets_the_time_the_memory_and_the_gpus_of_its_rule(
    finished: Path, rule: str
) -> None:
    jobs = jobs_of(finished, rule)
    times, megs, gpus, number = GIVEN[rule]
    assert [job["JobState"] for job in jobs] == ["COMPLETED"] * number
    made = runs(finished)
    for job in jobs:
        assert (minutes(job["TimeLimit"]), megabytes(job["MinMemoryNode"])) == (times, megs)
        assert job.get("TresPerNode") == ("gres:gpu:h100:1" if gpus else None)
        assert (job["Account"], job["Partition"]) == ("test", "gpu")
        assert job["Requeue"] == "0"
        result = made[job["JobId"]]
        assert result["spec"]["stage"] == rule
        assert [a["gpus"] for a in result["attempts"] if a["event"] == "start"] == [gpus]


def test_no_other_rule_was_submitted_and_each_job_ran_once(finished: Path) -> None:
    assert {job["Rule"].removeprefix("rule_") for job in slurm_jobs(finished)} == set(GIVEN)
    for path in (finished / "results").rglob("work/attempts.jsonl"):
        lines = ledger(path.parent.parent)
        assert [line.get("outcome", line["event"]) for line in lines] == ["start", "finished"], path


def test_logs_of_slurm_are_where_the_profile_says(finished: Path) -> None:
    for job in slurm_jobs(finished):
        log = Path(job["StdOut"])
        assert log.is_relative_to(finished / "logs" / "slurm") and log.name == f"{job['JobId']}.log"
        assert "1 of 1 steps (100%) done" in log.read_text()


def test_a_second_run_plans_nothing(finished: Path) -> None:
    submitted = len(slurm_jobs(finished))
    assert "Nothing to be done" in run(finished)
    assert len(slurm_jobs(finished)) == submitted
