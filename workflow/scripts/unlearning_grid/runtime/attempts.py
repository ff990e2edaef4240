"""Every attempt at a stage, also the failed ones: work/attempts.jsonl and failure.json.

Snakemake deletes the outputs of a failed job, so what a failure leaves for people (and for the
cells table) are these two files, which no rule declares.
"""

import json
import os
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unlearning_grid.runtime.atomic import write_json
from unlearning_grid.runtime.job import Interrupted
from unlearning_grid.runtime.lease import LeaseLost

FAILURE_NAME = "failure.json"


class Ledger:
    """Appends one line when an attempt starts and one when it ends."""

    def __init__(self, folder: Path, key: str, spec_digest: str, nonce: str) -> None:
        self.path = folder / "work" / "attempts.jsonl"
        self.key = key
        self.spec_digest = spec_digest
        self.nonce = nonce

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Record start, end and outcome of the work inside."""
        began = time.time()
        self._append(
            event="start",
            time=round(began),
            host=socket.gethostname(),
            pid=os.getpid(),
            slurm_job=os.environ.get("SLURM_JOB_ID"),
        )
        outcome = "failed"
        try:
            yield
            outcome = "finished"
        except (Interrupted, KeyboardInterrupt):
            outcome = "interrupted"
            raise
        except LeaseLost:
            outcome = "gave-way"
            raise
        finally:
            self._append(event="end", outcome=outcome, seconds=round(time.time() - began, 1))

    def _append(self, **fields: Any) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = {"key": self.key, "spec": self.spec_digest, "nonce": self.nonce, **fields}
        with open(self.path, "a", encoding="utf-8") as handle:
            handle.write(json.dumps(line, sort_keys=True) + "\n")


def read(folder: Path, key: str | None = None) -> list[dict[str, Any]]:
    """The ledger's lines, of one key or of all; a line cut short by a kill is left out."""
    path = folder / "work" / "attempts.jsonl"
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return [line for line in lines if key is None or line["key"] == key]


def died_without_a_word(folder: Path, spec_digest: str) -> bool:
    """Whether the last attempt at this spec started and never ended: killed, or still running."""
    lines = [line for line in read(folder) if line["spec"] == spec_digest]
    return bool(lines) and lines[-1]["event"] == "start"


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
