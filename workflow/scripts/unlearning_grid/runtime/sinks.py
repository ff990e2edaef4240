"""Where a trainer's metrics go beside the result: TensorBoard or W&B, for people to watch.

Nothing is read back from a sink, and no result depends on one: the profile decides.
"""

import importlib
import os
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.runtime.job import Job

SINKS = ("none", "tensorboard", "wandb")
FOLDER = Path("logs")  # in the working directory, beside results
PROJECT = "unlearning-grid"


def check_sink(value: Any) -> str:
    """The resource `report_to` of a job. Raises UserError unless it names a sink."""
    if value not in SINKS:
        raise UserError(
            f"resource report_to: {value!r} is none of {', '.join(SINKS)}; correct it in the "
            "profile or in --set-resources"
        )
    return value


def prepare(job: Job) -> str:
    """The trainer's `report_to`, with the environment that its reporter reads.

    A result has its own place, and each spec of it its own run, which a resumed job goes on with.
    Only the first process of several reports; the trainer sees to that.

    Raises UserError when the sink's package cannot be imported.
    """
    if job.report_to == "none":
        return "none"
    _check_installed(job.report_to)
    name = job.work.parent.parent.as_posix().removeprefix("results/")
    if job.report_to == "tensorboard":
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(FOLDER / "tensorboard" / name / job.work.name)
    else:
        FOLDER.mkdir(exist_ok=True)  # else W&B writes elsewhere; it makes `wandb` in it
        os.environ.setdefault("WANDB_PROJECT", PROJECT)
        os.environ |= {
            "WANDB_DIR": str(FOLDER),
            "WANDB_NAME": name,
            "WANDB_RUN_ID": job.work.name,
            "WANDB_RESUME": "allow",
        }
    return job.report_to


def _check_installed(package: str) -> None:
    try:
        file = getattr(importlib.import_module(package), "__file__", None)
    except ImportError:
        file = None
    if file is None:  # absent, or a mere folder of that name
        raise UserError(
            f"resource report_to: {package} is not installed in this job's environment; install "
            "it there (outside envs/*.yaml, whose pins are part of every spec) or set report_to "
            "to none"
        )
