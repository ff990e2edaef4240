"""What a stage function gets to see."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearning_grid.runtime.lease import Lease, Witness
from unlearning_grid.runtime.manifest import check_output, content_digest, read

KEPT = "kept"
JUDGE_REQUESTS = 16


class Interrupted(Exception):
    """The job was asked to stop (SIGTERM) and has saved what it could. Run again to resume."""


@dataclass
class Job:
    """One run of a stage: its spec, declared inputs, where to write, and a folder to resume from.

    Attributes:
        spec: what to do, complete: {"stage", "cell", "settings", "code", "env"}.
        inputs: manifests of the stages this one builds on, by name (a list where there are many).
        outputs: where to write, by name; published under their final names when the stage returns.
        work: undeclared folder that survives a kill; the same spec and inputs get the same folder.
        judge_requests: how many requests to a judge this job may have open at a time.
        processes: how many processes of this machine share the work, one per GPU.
        report_to: where the trainer's metrics go beside the result: none, tensorboard or wandb.
        gpu: the GPUs that the stage ran on, where processes of its own did the work.
    """

    spec: Mapping[str, Any]
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Path]
    work: Path
    lease: Lease | Witness | None = None
    judge_requests: int = JUDGE_REQUESTS
    processes: int = 1
    report_to: str = "none"
    gpu: str | None = None
    stop_requested: bool = False

    @property
    def settings(self) -> Mapping[str, Any]:
        """The stage's own effective settings."""
        return self.spec["settings"]

    @property
    def cell(self) -> Mapping[str, Any]:
        """The facts of the cell."""
        return self.spec["cell"]

    def artefact(self, name: str, file: str) -> Path:
        """An output of the stage whose manifest is the input `name`, checked against its digest."""
        return check_output(self.inputs[name], file)

    def content_digest(self, name: str) -> str:
        """Content digest of the manifest that is the input `name`."""
        return content_digest(read(self.inputs[name]))

    @property
    def kept(self) -> Path:
        """Undeclared folder that all specs of this result share, for parts worth reusing."""
        folder = self.work.parent / KEPT
        folder.mkdir(exist_ok=True)
        return folder

    def checkpoint_guard(self) -> None:
        """Call before writing into `work`: raises LeaseLost when another worker took over."""
        if self.lease:
            self.lease.check()

    def on_terminate_finish_step(self) -> None:
        """From now on SIGTERM only sets `stop_requested`; the stage then saves and stops."""

        def handler(_signal: int, _frame: object) -> None:
            self.stop_requested = True

        signal.signal(signal.SIGTERM, handler)


def raise_on_terminate() -> None:
    """Until a stage asks for something gentler, SIGTERM unwinds the stack."""

    def handler(_signal: int, _frame: object) -> None:
        raise Interrupted("SIGTERM; nothing of this stage is kept, run again to repeat it")

    if os.name == "posix":
        signal.signal(signal.SIGTERM, handler)


def use_threads(threads: int) -> None:
    """Limit the math libraries to this job's share of the cores. Call before importing torch."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
