"""How far a job is: work/<key>/progress.json, for people who look from elsewhere.

It is written at most every few seconds, by the one process that speaks for the job, and goes with
the work folder when the result is there. What a killed job left is the last that was known of it.
"""

import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from unlearning_grid.runtime.atomic import read_json, write_json

NAME = "progress.json"
PAUSE = 5.0  # seconds between two writings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """What a job last said.

    Attributes:
        done, total: in `unit`, which is a plural ("steps").
        first: what was done when this process began to count, which a resumed run does not make.
        seconds: since then, by the job's own clock.
    """

    done: int
    total: int
    unit: str
    first: int
    seconds: float

    @property
    def left(self) -> float | None:
        """Seconds that the rest takes at the rate so far; None before there is one."""
        made = self.done - self.first
        return (self.total - self.done) * self.seconds / made if made > 0 else None


class Progress:
    """Writes one job's readings into its work folder."""

    def __init__(self, work: Path, pause: float = PAUSE) -> None:
        self.path = work / NAME
        self.pause = pause
        self._begun: tuple[str, int, int, float] | None = None  # unit, total, first, when
        self._written = 0.0

    def report(self, done: int, total: int, unit: str) -> None:
        """Note that `done` of `total` are made. Counting starts anew with another unit or total.

        A disk that does not take it is no reason to stop the work.
        """
        now = time.monotonic()
        new = self._begun is None or self._begun[:2] != (unit, total)
        if new:
            self._begun = (unit, total, done, now)
        elif now - self._written < self.pause and done < total:
            return
        assert self._begun is not None
        self._written = now
        _, _, first, began = self._begun
        if not self.path.parent.is_dir():  # cleaned away by who took over
            return
        try:
            write_json(self.path, asdict(Reading(done, total, unit, first, round(now - began, 1))))
        except OSError as error:
            log.warning("progress is not written: %s", error)


def read(work: Path) -> Reading | None:
    """The last reading of a work folder; None where there is none."""
    found = read_json(work / NAME)
    try:
        return Reading(**found) if found else None
    except TypeError:  # of another version
        return None
