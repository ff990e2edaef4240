"""What can befall a training on the cluster: each cell meets another fault, all in one run."""

import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurm.cluster import Cluster
from slurm.runs import (
    EVALUATED_TOGETHER,
    Run,
    assert_same_results,
    caught,
    cell,
    copied,
    derived,
    events,
    forget,
    job,
    log_of,
    provenance,
    running,
    slurm_log,
    thaw,
    training_jobs,
)

pytestmark = pytest.mark.slurm

TOO_SHORT = cell("cold", "r0-lex")
TOO_SMALL = cell("cold", "r2-rubric")
CANCELLED = cell("warm", "r0-lex")
NODE_LOST = cell("warm", "r2-rubric")
NODE = "gn3"  # no other job is sent there

# Expressions of a profile. The first one: is this the first attempt at that cell?
FIRST = "(wildcards.init, wildcards.reward, attempt) == ('{}', '{}', 1)"
ASKED = {
    "runtime": "10 * attempt",
    "mem_mb": f"500 if {FIRST.format('cold', 'r2-rubric')} else 8000 * attempt",
    "slurm_extra": f"'--nodelist={NODE}' if {FIRST.format('warm', 'r2-rubric')} "
    f"else '--exclude={NODE}'",
}


@dataclass
class Story:
    """A finished run. `leases` are those of the trainers that were disturbed, by cell."""

    directory: Path
    leases: Mapping[str, dict[str, Any]]

    def jobs(self, folder: str) -> list[dict[str, str]]:
        return training_jobs(self.directory, folder)

    def states(self, folder: str) -> list[str]:
        return [job["JobState"] for job in self.jobs(folder)]


def scenario(cluster: Cluster, finished: Path, folder: Path) -> Story:
    """All four trainings anew, each disturbed in its own way, then on to the tables."""
    directory = copied(finished, folder / "grid")
    forget(directory, TOO_SHORT, TOO_SMALL, CANCELLED, NODE_LOST)
    profile = derived(folder / "profile", {"set-resources": {"train_grpo": ASKED}})
    try:
        return Story(directory, disturb(directory, profile, cluster))
    finally:
        cluster.start_node(NODE)


def disturb(directory: Path, profile: Path, cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Run to the end, with a watcher for each fault; the leases of the trainers that met one."""
    with (
        running(directory, profile=profile, words=EVALUATED_TOGETHER) as run,
        ThreadPoolExecutor() as watchers,
    ):
        leases = {
            TOO_SHORT: watchers.submit(shorten, run),
            CANCELLED: watchers.submit(cancel, run),
            NODE_LOST: watchers.submit(lose_node, run, cluster),
        }
        found = {name: future.result() for name, future in leases.items()}
        run.end()
    return found


def shorten(run: Run) -> dict[str, Any]:
    """A time limit that ends in the middle of the training: Slurm's shortest is a minute."""
    (lease,) = caught(run, TOO_SHORT)
    words = ["scontrol", "update", f"JobId={lease['slurm_job']}", "TimeLimit=1"]
    subprocess.run(words, check=True)
    return lease


def cancel(run: Run) -> dict[str, Any]:
    """What a user or an administrator does to a running job."""
    (lease,) = caught(run, CANCELLED)
    subprocess.run(["scancel", lease["slurm_job"]], check=True)
    return lease


def lose_node(run: Run, cluster: Cluster) -> dict[str, Any]:
    """A node that no longer answers, while the process there lives and goes on later."""
    (lease,) = caught(run, NODE_LOST)
    cluster.kill_node(NODE)
    folder = run.directory / NODE_LOST
    run.until(lambda: "waiting for it" in log_of(folder), "the second trainer")
    assert job(run.directory, lease["slurm_job"])["JobState"] == "NODE_FAIL"
    thaw(lease)
    return lease


def test_a_time_limit_is_met_by_a_longer_attempt_that_resumes(story: Story) -> None:
    folder = story.directory / TOO_SHORT
    assert story.states(TOO_SHORT) == ["TIMEOUT", "COMPLETED"]
    assert [job["TimeLimit"] for job in story.jobs(TOO_SHORT)] == ["00:01:00", "00:20:00"]
    assert events(folder) == ["start", "interrupted", "start", "finished"]
    assert "stopped on request: saved at step" in slurm_log(story.jobs(TOO_SHORT)[0])
    assert "resuming from" in log_of(folder)


def test_out_of_memory_is_met_by_an_attempt_with_more(cluster: Cluster, story: Story) -> None:
    first, second = story.jobs(TOO_SMALL)
    assert [job["MinMemoryNode"] for job in (first, second)] == ["500M", "16000M"]
    # Without cgroups Slurm kills the step and calls the job FAILED, not OUT_OF_MEMORY.
    assert [job["JobState"] for job in (first, second)] == ["FAILED", "COMPLETED"]
    said = (cluster.root / "log" / f"slurmd-{first['NodeList']}.log").read_text()
    assert f"StepId={first['JobId']}.0 exceeded memory limit" in said
    assert events(story.directory / TOO_SMALL)[-2:] == ["start", "finished"]


def test_a_cancelled_job_is_submitted_again_and_resumes(story: Story) -> None:
    folder = story.directory / CANCELLED
    assert story.states(CANCELLED) == ["CANCELLED", "COMPLETED"]
    assert events(folder) == ["start", "interrupted", "start", "finished"]
    assert "stopped on request: saved at step" in slurm_log(story.jobs(CANCELLED)[0])
    assert "resuming from" in log_of(folder)


def test_a_trainer_on_a_lost_node_is_waited_for_not_joined(story: Story) -> None:
    folder = story.directory / NODE_LOST
    assert story.states(NODE_LOST) == ["NODE_FAIL", "COMPLETED"]
    assert events(folder) == ["start", "finished"], "one training"
    assert provenance(folder)["slurm_job"] == story.leases[NODE_LOST]["slurm_job"]


def test_every_result_is_that_of_an_undisturbed_run(story: Story, finished: Path) -> None:
    assert_same_results(story.directory, finished)
