"""What asking judges cost this process: requests and tokens by entry of `judges`.

Whoever sends requests adds to the one meter of the process; the ledger writes its sums into the end
line of an attempt. So that a killed attempt's sums are not lost, they are written into the work
folder every few seconds, by each process of a job under its own name:

    work/<key>/meter-<nonce of the attempt>-<process>.json
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from unlearning_grid.runtime.atomic import read_json, write_json

PAUSE = 10.0  # seconds between two writings

Judged = dict[str, dict[str, int]]
"""Entry of `judges` -> count by name; only what is not 0."""

log = logging.getLogger(__name__)


class Meter:
    """Sums by judge; threads may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, Counter[str]] = {}
        self._path: Path | None = None
        self._written = 0.0

    def start(self, path: Path) -> None:
        """Begin at 0, and keep the sums in `path` from now on."""
        with self._lock:
            self._counts = {}
            self._path = path
            self._written = time.monotonic()

    def add(self, judge: str, counts: Mapping[str, int]) -> None:
        """Add counts of one judge: asked, cached, sent, failed, unmetered, tokens by kind."""
        with self._lock:
            self._counts.setdefault(judge, Counter()).update(counts)
            if time.monotonic() - self._written > PAUSE:
                self._write()

    def flush(self) -> None:
        """Write the sums now."""
        with self._lock:
            self._write()

    def stop(self) -> Judged:
        """Write the sums a last time, and return them."""
        with self._lock:
            self._write()
            self._path = None
            return _plain(self._counts)

    def _write(self) -> None:
        self._written = time.monotonic()
        if self._path is None or not self._counts or not self._path.parent.is_dir():
            return
        try:
            write_json(self._path, _plain(self._counts))
        except OSError as error:  # no reason to stop the work
            log.warning("the sums of judge requests are not written: %s", error)


METER = Meter()
"""The meter of this process."""


def path_of(work: Path, nonce: str, process: int | str = "main") -> Path:
    """Where one process of an attempt keeps its sums."""
    return work / f"meter-{nonce}-{process}.json"


def read(work: Path, nonce: str, process: str = "*") -> Judged:
    """The sums of an attempt's processes ("[0-9]*": those that it started), as far as written."""
    found = (read_json(path) for path in sorted(work.glob(path_of(work, nonce, process).name)))
    return total(one for one in found if one)


def clear(work: Path, nonce: str) -> None:
    """Take away what an attempt's processes wrote."""
    for path in work.glob(path_of(work, nonce, "*").name):
        path.unlink(missing_ok=True)


def total(parts: Iterable[Mapping[str, Mapping[str, int]]]) -> Judged:
    """The sum of several."""
    whole: dict[str, Counter[str]] = {}
    for part in parts:
        for judge, counts in part.items():
            whole.setdefault(judge, Counter()).update(counts)
    return _plain(whole)


def _plain(counts: Mapping[str, Counter[str]]) -> Judged:
    return {
        judge: {name: number for name, number in sorted(c.items()) if number}
        for judge, c in sorted(counts.items())
        if c.total()
    }
