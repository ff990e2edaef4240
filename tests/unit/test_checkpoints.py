"""Which checkpoint a killed run goes on from."""

from pathlib import Path

import pytest

from unlearning_grid.train.checkpoints import COMPLETE, checkpoint_step, latest_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Whole checkpoints at 8, 50 and 60, and one at 70 that a kill cut short."""
    for step in (8, 50, 60, 70):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if step != 70:
            (tmp_path / f"checkpoint-{step}" / COMPLETE).touch()
    return tmp_path


def step(checkpoint: Path | None) -> int | None:
    return None if checkpoint is None else checkpoint_step(checkpoint)


def test_the_last_whole_one_by_number_not_by_name(folder: Path) -> None:
    assert step(latest_checkpoint(folder)) == 60


def test_steps_at_which_a_run_stops_are_passed_over(folder: Path) -> None:
    """The trainer looks at its limits only after a step: from 60 of 60 it would make a 61st."""
    assert step(latest_checkpoint(folder, [60])) == 50
    assert step(latest_checkpoint(folder, [60, 50])) == 8


def test_none_is_none(folder: Path) -> None:
    assert latest_checkpoint(folder, [60, 50, 8]) is None
    assert latest_checkpoint(folder / "absent") is None
