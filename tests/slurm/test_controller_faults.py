"""What can befall the controller while its jobs run: no training is made twice, none is lost."""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurm.cluster import Cluster
from slurm.runs import (
    EVALUATED_TOGETHER,
    assert_same_results,
    caught,
    cell,
    copied,
    events,
    forget,
    holder,
    job,
    log_of,
    provenance,
    running,
    thaw,
    training_jobs,
    unlock,
    until,
)

pytestmark = pytest.mark.slurm

STOPPED = cell("warm", "r0-lex")  # by SIGINT, then by SIGTERM
STILL_RUNNING = cell("warm", "r2-rubric")  # when the controller that follows a killed one starts
FINISHED = cell("cold", "r0-lex")  # by then

Lease = dict[str, Any]


@dataclass
class Story:
    """What was there after each signal; leases by cell."""

    directory: Path
    after_sigint: list[str]
    interrupted: Lease
    resumed: Lease
    orphans: dict[str, Lease]

    def state(self, lease: Lease) -> str:
        return job(self.directory, lease["slurm_job"])["JobState"]


def scenario(cluster: Cluster, finished: Path, folder: Path) -> Story:
    """SIGINT, SIGTERM and SIGKILL, each followed by the same command again."""
    directory = copied(finished, folder / "grid")
    forget(directory, STOPPED, STILL_RUNNING, FINISHED)
    interrupted = interrupt(directory)
    left = sorted(path.name for path in (directory / STOPPED).iterdir())
    resumed = terminate(directory)
    orphans = kill(directory)
    unlock(directory)
    with running(directory, words=EVALUATED_TOGETHER) as run:
        log = directory / STILL_RUNNING
        run.until(lambda: "waiting for it" in log_of(log), "the second trainer")
        thaw(orphans[STILL_RUNNING])
        run.end()
    return Story(directory, left, interrupted, resumed, orphans)


def interrupt(directory: Path) -> Lease:
    """SIGINT, as Ctrl-C sends it, while a training runs."""
    with running(directory, f"{STOPPED}/manifest.json") as run:
        (lease,) = caught(run, STOPPED)
        run.signal(signal.SIGINT)
        run.end(None)
    until(lambda: holder(directory / STOPPED) is None, "the trainer's end")
    return lease


def terminate(directory: Path) -> Lease:
    """SIGTERM while the same training runs again."""
    with running(directory, f"{STOPPED}/manifest.json") as run:
        (lease,) = caught(run, STOPPED)
        run.signal(signal.SIGTERM)
        thaw(lease)
        run.end(None)
    return lease


def kill(directory: Path) -> dict[str, Lease]:
    """SIGKILL while two trainings run; one of them has finished when this returns."""
    both = (STILL_RUNNING, FINISHED)
    with running(directory, *(f"{folder}/manifest.json" for folder in both)) as run:
        leases = dict(zip(both, caught(run, *both), strict=True))
        run.kill()
    thaw(leases[FINISHED])
    number = leases[FINISHED]["slurm_job"]
    until(lambda: job(directory, number)["JobState"] == "COMPLETED", "the orphan's end")
    return leases


def test_sigint_cancels_the_jobs_and_publishes_nothing(story: Story) -> None:
    assert story.state(story.interrupted) == "CANCELLED"
    assert story.after_sigint == ["train_grpo.log", "work"]
    assert events(story.directory / STOPPED)[:2] == ["start", "interrupted"]


def test_sigterm_waits_for_the_running_job(story: Story) -> None:
    """Started again after the SIGINT the training had resumed, and it was finished."""
    assert story.state(story.resumed) == "COMPLETED"
    assert events(story.directory / STOPPED)[2:] == ["start", "finished"]
    assert "resuming from" in log_of(story.directory / STOPPED)
    assert provenance(story.directory / STOPPED)["slurm_job"] == story.resumed["slurm_job"]


def test_a_job_that_runs_on_after_sigkill_is_waited_for_not_joined(story: Story) -> None:
    first, second = training_jobs(story.directory, STILL_RUNNING)
    orphan = story.orphans[STILL_RUNNING]["slurm_job"]
    assert (first["JobId"], second["JobState"]) == (orphan, "COMPLETED")
    assert events(story.directory / STILL_RUNNING) == ["start", "finished"], "one training"
    assert provenance(story.directory / STILL_RUNNING)["slurm_job"] == orphan


def test_a_job_that_finished_after_sigkill_is_accepted_as_it_is(story: Story) -> None:
    (only,) = training_jobs(story.directory, FINISHED)
    assert events(story.directory / FINISHED) == ["start", "finished"]
    assert provenance(story.directory / FINISHED)["slurm_job"] == only["JobId"]


def test_every_result_is_that_of_an_undisturbed_run(story: Story, finished: Path) -> None:
    assert_same_results(story.directory, finished)
