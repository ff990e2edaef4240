"""A disk that is full in the middle of a training: nothing half-written, and on with more room."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

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
    log_of,
    run,
    running,
    thaw,
)

pytestmark = pytest.mark.slurm

CELL = cell("warm", "r0-lex")


@dataclass
class Story:
    """The working directory after both runs, and the cell's folder and ledger after the first."""

    directory: Path
    left: list[str]
    events: list[str]


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A file system of its own, in memory."""
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=120m", "grid-tests", str(place)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Leave no byte free; returns the file that takes them."""
    ballast = place / "ballast"
    with open(ballast, "wb", buffering=0) as stream, suppress(OSError):
        while True:
            stream.write(bytes(1 << 16))
    assert os.statvfs(place).f_bavail == 0
    return ballast


def scenario(cluster: Cluster, finished: Path, folder: Path) -> Story:
    """The disk is filled while a training stands still; the next run has room again."""
    with small_disk(folder / "disk") as place:
        directory = copied(finished, place / "grid")
        forget(directory, CELL)
        with running(directory, words=["--retries", "0"]) as first:
            (lease,) = caught(first, CELL)
            ballast = fill(place)
            thaw(lease)
            first.end(None)
        left = sorted(path.name for path in (directory / CELL).iterdir())
        after = events(directory / CELL)
        ballast.unlink()
        run(directory, words=EVALUATED_TOGETHER)
        return Story(copied(directory, folder / "copy"), left, after)


def test_nothing_is_published_from_a_full_disk(story: Story) -> None:
    assert set(story.left) <= {"train_grpo.log", "failure.json", "work"}
    assert story.events[:1] == ["start"] and "finished" not in story.events


def test_with_room_again_the_training_resumes(story: Story) -> None:
    assert "resuming from" in log_of(story.directory / CELL)
    assert events(story.directory / CELL)[-2:] == ["start", "finished"]


def test_every_result_is_that_of_an_undisturbed_run(story: Story, finished: Path) -> None:
    assert_same_results(story.directory, finished)
