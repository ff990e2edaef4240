"""Which checkpoint a killed run goes on from."""

import json
import logging
from pathlib import Path

import pytest

from unlearning_grid.errors import UserError
from unlearning_grid.runtime.job import Job
from unlearning_grid.train.checkpoints import COMPLETE, checkpoint_step, latest_checkpoint


def job_in(work: Path, processes: int = 1) -> Job:
    return Job(spec={}, inputs={}, outputs={}, work=work, processes=processes)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Whole checkpoints at 8, 50 and 60, and one at 70 that a kill cut short."""
    for step in (8, 50, 60, 70):
        checkpoint = tmp_path / "key" / "checkpoints" / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        if step != 70:
            (checkpoint / COMPLETE).write_text(json.dumps({"key": "key", "processes": 1}))
    return job_in(tmp_path / "key")


def step(checkpoint: Path | None) -> int | None:
    return None if checkpoint is None else checkpoint_step(checkpoint)


def test_the_last_whole_one_by_number_not_by_name(job: Job) -> None:
    assert step(latest_checkpoint(job)) == 60


def test_steps_at_which_a_run_stops_are_passed_over(job: Job) -> None:
    """The trainer looks at its limits only after a step: from 60 of 60 it would make a 61st."""
    assert step(latest_checkpoint(job, [60])) == 50
    assert step(latest_checkpoint(job, [60, 50])) == 8


def test_none_is_none(job: Job, tmp_path: Path) -> None:
    assert latest_checkpoint(job, [60, 50, 8]) is None
    assert latest_checkpoint(job_in(tmp_path / "absent")) is None


@pytest.mark.parametrize("mark", ['{"key": "another", "processes": 1}', ""])
def test_another_runs_checkpoint_is_refused_by_name(job: Job, mark: str) -> None:
    (job.work / "checkpoints" / "checkpoint-60" / COMPLETE).write_text(mark)
    with pytest.raises(UserError, match="checkpoint-60 belongs to another run.*has key.*delete"):
        latest_checkpoint(job)


def test_other_processes_go_on_with_a_warning(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert step(latest_checkpoint(job_in(job.work, processes=2))) == 60
    assert "written by 1 processes, this run has 2" in caplog.text
