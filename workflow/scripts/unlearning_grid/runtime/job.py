"""What a stage function gets to see."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.runtime.lease import Lease, Witness
from unlearning_grid.runtime.manifest import check_output, content_digest, read
from unlearning_grid.runtime.progress import Progress
from unlearning_grid.spec.operations import combine

KEPT = "kept"
JUDGE_REQUESTS = 16
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # torch reads the first that is set


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
        operations: settings that are no part of the spec (spec.operations).
        judge_requests: how many requests to a judge this job may have open at a time.
        processes: how many processes of this machine share the work, one per GPU.
        gpu_share: how many jobs share its GPU.
        report_to: where the trainer's metrics go beside the result: none, tensorboard or wandb.
        gpu: the GPUs that the stage ran on, where processes of its own did the work.
    """

    spec: Mapping[str, Any]
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Path]
    work: Path
    lease: Lease | Witness | None = None
    operations: Mapping[str, Any] = field(default_factory=dict)
    judge_requests: int = JUDGE_REQUESTS
    processes: int = 1
    gpu_share: int = 1
    report_to: str = "none"
    gpu: str | None = None
    stop_requested: bool = False

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The stage's own effective settings, operational ones included."""
        return combine(self.spec["settings"], self.operations)

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
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @cached_property
    def _progress(self) -> Progress:
        return Progress(self.work)

    def progress(self, done: int, total: int, unit: str) -> None:
        """Tell people how far the work is; one process of a run does. Cheap, call it often."""
        self._progress.report(done, total, unit)

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


def share_gpu(jobs: Any) -> None:
    """Limit torch to this job's share of the GPU's memory. Call before importing torch.

    Args:
        jobs: how many jobs share the GPU, the resource `gpu_share`.
    Raises UserError unless it is a whole number from 1 on.
    """
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise UserError(
            f"resource gpu_share: {jobs!r} is no number of jobs; set it to how many share one GPU, "
            "or leave it out for one"
        )
    if jobs > 1:
        name = next((name for name in _ALLOCATOR if name in os.environ), _ALLOCATOR[-1])
        given = os.environ.get(name)
        limit = f"per_process_memory_fraction:{1 / jobs:.4f}"
        os.environ[name] = f"{given},{limit}" if given else limit
