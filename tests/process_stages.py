"""Tiny stages for tests/unit/test_launch.py. Each runs in a process of its own, without torch."""

import json
import os
import signal
import time
from pathlib import Path

import psutil

from unlearning_grid.errors import UserError
from unlearning_grid.runtime.job import Interrupted, Job
from unlearning_grid.runtime.lease import LeaseLost

RANK = int(os.environ.get("RANK", "0"))


def describe(job: Job) -> dict:
    """Every process leaves what it sees; the first one writes the outputs."""
    seen = {
        "cell": dict(job.cell),
        "inputs": {name: str(value) for name, value in job.inputs.items()},
        "asked": [job.judge_requests, job.processes, job.report_to],
        "environment": {name: os.environ[name] for name in job.settings["names"]},
    }
    job.checkpoint_guard()
    (job.work / f"seen-{RANK}.json").write_text(json.dumps(seen))
    if RANK == 0:
        for path in job.outputs.values():
            path.write_text("made")
    return {"rank": RANK}


def fail(job: Job) -> None:
    """The last process fails as the settings say; the others wait for it, as in a collective."""
    job.on_terminate_finish_step()
    note(job, "started")
    if RANK:
        wait_for(job.work / "started-0")
        kind, text = job.settings["error"]
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise {"UserError": UserError, "LeaseLost": LeaseLost}.get(kind, ValueError)(text)
    time.sleep(60)


def follow(job: Job) -> None:
    """The last process fails, and the first one fails because of it, a moment later."""
    note(job, "started")
    if RANK:
        if job.settings["killed"]:
            os.kill(os.getpid(), signal.SIGKILL)
        raise UserError("the judge does not answer")
    (other,) = wait_for(job.work / "started-1")
    while runs(other):
        time.sleep(0.001)
    raise RuntimeError("connection closed by peer")


def finish_step(job: Job) -> None:
    """Work in steps; after SIGTERM finish the current one, save, and stop."""
    job.on_terminate_finish_step()
    note(job, "started")
    while not job.stop_requested:
        job.checkpoint_guard()
        time.sleep(0.05)
    time.sleep(0.2 + 0.2 * RANK)
    note(job, "saved")
    raise Interrupted("saved at step 4 of 6; run again to resume")


def unwind(job: Job) -> None:
    """Nothing to save yet: SIGTERM ends it where it is."""
    note(job, "started")
    time.sleep(60)


def step_for_ever(job: Job) -> None:
    """Steps, each of which looks at the lease first."""
    job.on_terminate_finish_step()
    note(job, "started")
    while True:
        job.checkpoint_guard()
        time.sleep(0.05)


def hang(job: Job) -> None:
    """Deaf to everything, as in a collective whose other side is gone."""
    job.on_terminate_finish_step()
    note(job, "started")
    while True:
        time.sleep(1)


def end_badly(job: Job) -> dict:
    """Done, but the interpreter dies on its way out."""
    import atexit

    atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
    return {"rank": RANK}


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def note(job: Job, event: str) -> None:
    """A file event-RANK that holds the process id, written at once."""
    partial = job.work / f".{event}-{RANK}"
    partial.write_text(str(os.getpid()))
    partial.rename(job.work / f"{event}-{RANK}")


def wait_for(*paths: Path) -> list[int]:
    """Wait until the files are there; the process ids in those of `note`."""
    deadline = time.monotonic() + 20
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, f"none of {paths}"
        time.sleep(0.01)
    return [int(path.read_text()) for path in paths if path.suffix != ".json"]
