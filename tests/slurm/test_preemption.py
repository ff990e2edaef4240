"""A partition that preempts by requeueing, with the variant of the profile that is meant for it."""

import subprocess
from pathlib import Path

import pytest

from slurm.cluster import Cluster
from slurm.runs import (
    EVALUATED_TOGETHER,
    assert_same_results,
    caught,
    cell,
    copied,
    derived,
    events,
    forget,
    log_of,
    provenance,
    running,
    training_jobs,
)

pytestmark = pytest.mark.slurm

CELL = cell("warm", "r0-lex")
NODE = "gn4"  # no other job is sent there
VARIANT = {
    "slurm-no-requeue": None,
    "slurm-requeue": True,
    "set-resources": {
        "train_grpo": {"slurm_partition": "preemptible", "slurm_extra": f"'--nodelist={NODE}'"}
    },
}
URGENT = ["--partition=gpu", f"--nodelist={NODE}", "--exclusive", "--mem=0", "--time=1"]


def scenario(cluster: Cluster, finished: Path, folder: Path) -> Path:
    """One training anew, on a node that a job of another partition takes away for a moment."""
    directory = copied(finished, folder / "grid")
    forget(directory, CELL)
    profile = derived(folder / "profile", VARIANT)
    with running(directory, profile=profile, words=EVALUATED_TOGETHER) as run:
        caught(run, CELL)
        words = ["sbatch", *URGENT, "--output=/dev/null", "--wrap=sleep 1"]
        subprocess.run(words, check=True, capture_output=True, cwd=folder)
        run.end()
    return directory


def test_a_preempted_training_is_requeued_by_slurm_and_resumes(story: Path) -> None:
    folder = story / CELL
    (only,) = training_jobs(story, CELL)
    assert (only["JobState"], only["Requeue"], only["Restarts"]) == ("COMPLETED", "1", "1")
    assert events(folder) == ["start", "interrupted", "start", "finished"]
    assert "resuming from" in log_of(folder)
    assert provenance(folder)["slurm_job"] == only["JobId"]


def test_every_result_is_that_of_an_undisturbed_run(story: Path, finished: Path) -> None:
    assert_same_results(story, finished)
