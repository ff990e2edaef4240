"""Every attempt at a stage, also the failed ones: work/attempts.jsonl and failure.json.

Snakemake deletes the outputs of a failed job, so what a failure leaves for people (and for the
cells table) are these two files, which no rule declares. The ledger is kept for ever: of all specs,
also those whose work folders are gone. An attempt that was killed writes no end; whoever finds its
lease notes when it was last alive.
"""

import json
import logging
import os
import socket
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unlearning_grid.runtime import devices, meter
from unlearning_grid.runtime.atomic import write_json
from unlearning_grid.runtime.job import Interrupted
from unlearning_grid.runtime.lease import LeaseLost, is_held, signs_of_life

log = logging.getLogger(__name__)

FAILURE_NAME = "failure.json"
FINISHED, KILLED, RUNNING = "finished", "killed", "running"


@dataclass(frozen=True)
class Attempt:
    """One attempt, as far as it is known.

    Attributes:
        stage: rule; None in ledgers of before it was noted.
        began: seconds of the epoch, by the clock of its host.
        outcome: finished, failed, interrupted (asked to stop), gave-way (another worker took over),
            killed, or running.
        seconds: how long it took or, running, takes; None where nothing tells.
        gpus: GPUs that it held, a part of one where jobs shared it; None where nothing tells.
        judges: requests and tokens by entry of `judges` (runtime.meter).
    """

    key: str
    spec: str
    nonce: str
    stage: str | None
    began: float
    outcome: str
    seconds: float | None
    gpus: float | None
    judges: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def gpu_hours(self) -> float | None:
        """GPUs times hours; 0 without a GPU, however long; None where one is unknown."""
        if self.gpus == 0:
            return 0.0
        if self.gpus is None or self.seconds is None:
            return None
        return self.gpus * self.seconds / 3600


class Ledger:
    """Appends one line when an attempt starts and one when it ends.

    Args:
        folder: of the result.
        nonce: of the lease under which the attempt works.
    """

    def __init__(self, folder: Path, key: str, spec_digest: str, nonce: str) -> None:
        self.folder = folder
        self.key = key
        self.spec_digest = spec_digest
        self.nonce = nonce

    @contextmanager
    def attempt(
        self,
        stage: str | None = None,
        since: float | None = None,
        processes: int = 1,
        gpu_share: int = 1,
    ) -> Iterator[None]:
        """Record start, end, outcome, GPUs and judge requests of the work inside.

        Args:
            stage: the rule.
            since: when the lease was acquired, by the clock that dates its signs of life.
            processes: of the job, one per GPU.
            gpu_share: how many jobs share the GPU.
        """
        work = self.folder / "work" / self.key
        began = time.time()
        held = devices.held(processes)
        self._append(
            event="start",
            stage=stage,
            time=round(began),
            since=since,
            host=socket.gethostname(),
            pid=os.getpid(),
            slurm_job=os.environ.get("SLURM_JOB_ID"),
            gpus=None if held is None else held / gpu_share,
        )
        meter.METER.start(meter.path_of(work, self.nonce))
        outcome = "failed"
        try:
            yield
            outcome = FINISHED
        except (Interrupted, KeyboardInterrupt):
            outcome = "interrupted"
            raise
        except LeaseLost:
            outcome = "gave-way"
            raise
        finally:
            gpus = {} if held is not None else {"gpus": devices.used() / gpu_share}
            others = meter.read(work, self.nonce, "[0-9]*")
            judges = meter.total([meter.METER.stop(), others])
            try:
                self._append(
                    event="end",
                    outcome=outcome,
                    seconds=round(time.time() - began, 1),
                    judges=judges,
                    **gpus,
                )
                meter.clear(work, self.nonce)
            except OSError as error:  # a full disk must not hide how the attempt ended
                log.warning("the end of this attempt is not recorded: %s", error)

    def _append(self, **fields: Any) -> None:
        line = {"key": self.key, "spec": self.spec_digest, "nonce": self.nonce, **fields}
        _append(self.folder, line)


def _append(folder: Path, line: Mapping[str, Any]) -> None:
    path = _ledger(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(line, sort_keys=True).encode() + b"\n"
    with open(path, "a+b") as handle:
        if handle.tell():
            handle.seek(-1, os.SEEK_END)
            if handle.read() != b"\n":  # cut by a kill or a full disk: it must not take this one
                text = b"\n" + text
        handle.write(text)


def note_killed(work: Path, signs: Mapping[str, float] | None = None) -> None:
    """Write the ends of attempts in a work folder that were killed before they could.

    Args:
        signs: nonce of a holder that is gone -> its last sign of life; None looks at the leases
            that still lie there.
    """
    folder = work.parent.parent
    for nonce, seen in (signs_of_life(work) if signs is None else signs).items():
        lines = [line for line in read(folder, work.name) if line["nonce"] == nonce]
        if len(lines) != 1:  # it never began to work, or its end is known
            continue
        _append(
            folder,
            {
                **{name: lines[0][name] for name in ("key", "spec", "nonce")},
                "event": "end",
                "outcome": KILLED,
                "seconds": _until(lines[0], seen),
                "judges": meter.read(work, nonce),
            },
        )
        meter.clear(work, nonce)


def _until(start: Mapping[str, Any], seen: float) -> float:
    """Seconds from a start line to a sign of life, both by the file system's clock."""
    since = start.get("since")
    return round(max(0.0, seen - (start["time"] if since is None else since)), 1)


def attempts_of(folder: Path) -> list[Attempt]:
    """Every attempt at a result, in the order of their starts."""
    lines = read(folder)
    ends: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line["event"] == "end":  # of several the last: a holder thought dead came back
            ends[line["nonce"]] = line
    starts = [line for line in lines if line["event"] == "start"]
    return [_attempt(folder, line, ends.get(line["nonce"])) for line in starts]


def _attempt(folder: Path, start: dict[str, Any], end: dict[str, Any] | None) -> Attempt:
    if end is None:
        work = folder / "work" / start["key"]
        seen = signs_of_life(work).get(start["nonce"])
        end = {
            "outcome": RUNNING if seen is not None and is_held(work) else KILLED,
            "seconds": None if seen is None else _until(start, seen),
            "judges": meter.read(work, start["nonce"]),
        }
    gpus = start.get("gpus")
    return Attempt(
        key=start["key"],
        spec=start["spec"],
        nonce=start["nonce"],
        stage=start.get("stage"),
        began=start["time"],
        outcome=end["outcome"],
        seconds=end["seconds"],
        gpus=end.get("gpus") if gpus is None else gpus,
        judges=end.get("judges") or {},
    )


def _ledger(folder: Path) -> Path:
    return folder / "work" / "attempts.jsonl"


def read(folder: Path, key: str | None = None) -> list[dict[str, Any]]:
    """The ledger's lines, of one key or of all; a line cut short by a kill is left out."""
    path = _ledger(folder)
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict) and {"key", "spec", "nonce", "event"} <= line.keys():
            lines.append(line)
    return [line for line in lines if key is None or line["key"] == key]


def died_without_a_word(folder: Path, spec_digest: str) -> bool:
    """Whether the last attempt at this spec never ended by itself: killed, or still running."""
    lines = [line for line in read(folder) if line["spec"] == spec_digest]
    return bool(lines) and (lines[-1]["event"] == "start" or lines[-1]["outcome"] == KILLED)


def write_failure(folder: Path, spec_digest: str, error: BaseException) -> None:
    """Leave the reason of a failure beside where the outputs would be."""
    write_json(
        folder / FAILURE_NAME,
        {
            "spec_digest": spec_digest,
            "error": type(error).__name__,
            "message": str(error)[:2000],
            "traceback": "".join(traceback.format_exception(error))[-4000:],
        },
    )
