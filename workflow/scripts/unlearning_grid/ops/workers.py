"""Who works on a result now, by its leases: also on another host, also without a controller."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearning_grid.runtime.atomic import read_json
from unlearning_grid.runtime.lease import is_held

SILENT_AFTER = 120.0
"""Seconds without a heartbeat (one comes every 5 s) after which a worker is probably gone."""


@dataclass(frozen=True)
class Worker:
    """The holder of a work folder.

    Attributes:
        work: the folder.
        seconds: since its last sign of life: our clock against the file's time, so about.
    """

    work: Path
    host: str
    pid: int | None
    slurm_job: str | None
    seconds: float

    @property
    def silent(self) -> bool:
        """Whether it is probably gone: killed on another host, where nobody can look for it."""
        return self.seconds > SILENT_AFTER

    @property
    def where(self) -> str:
        """Host with the Slurm job, or else the process."""
        own = f"Slurm job {self.slurm_job}" if self.slurm_job else f"process {self.pid}"
        return f"{self.host}, {own}"

    @property
    def sign_of_life(self) -> str:
        """When it was last heard of."""
        if self.silent:
            return f"silent for about {span(self.seconds)}"
        return f"last sign of life {span(self.seconds)} ago"


def workers(folder: Path) -> list[Worker]:
    """Holders of a result's work folders that are not known to be gone."""
    return list(_holders(folder.glob("work/*/lease-*.json")))


def all_workers(results: Path) -> list[Worker]:
    """Holders of every work folder below `results`, planned or not, in the order of the paths."""
    return list(_holders(sorted(results.rglob("lease-*.json"))))


def _holders(leases: Any) -> Iterator[Worker]:
    for work in dict.fromkeys(path.parent for path in leases):
        last = max(work.glob("lease-*.json"), key=_number, default=None)
        if last is None or not is_held(work):
            continue
        content: dict[str, Any] = read_json(last) or {}
        try:
            age = time.time() - last.stat().st_mtime
        except FileNotFoundError:  # released and cleaned away while we looked
            continue
        yield Worker(
            work,
            content.get("host", "a host unknown"),
            content.get("pid"),
            content.get("slurm_job"),
            max(0.0, age),
        )


def _number(lease: Path) -> int:
    return int(lease.stem.removeprefix("lease-"))


def span(seconds: float) -> str:
    """A length of time for people: 12 s, 12 min, 3.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
