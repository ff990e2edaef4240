"""One of several processes of a stage: `python -m unlearning_grid.runtime.worker FOLDER`.

FOLDER holds job.json, written by `runtime.launch`; RANK says which process this is. What becomes
of it, facts or error, goes into result-RANK.json there.
"""

import ctypes
import logging
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from unlearning_grid.runtime.atomic import read_json, write_json
from unlearning_grid.runtime.job import Interrupted, Job, raise_on_terminate
from unlearning_grid.runtime.lease import Witness
from unlearning_grid.runtime.logs import Terminal, log_as_one_of_many, logger
from unlearning_grid.runtime.meter import METER, path_of
from unlearning_grid.runtime.objects import load_object
from unlearning_grid.runtime.provenance import gpu_name

LINGER = 60  # seconds for clean-up after the work: libraries may wait for ever there
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl


def main(folder: Path, rank: int) -> None:
    """Run the stage function that job.json names, and leave its result or its error."""
    task = read_json(folder / "job.json") or {}
    end_with(task["parent"])
    raise_on_terminate()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    terminal = task["terminal"] if rank == 0 else None
    log_as_one_of_many(rank, Terminal(*terminal) if terminal else None)
    if task["lease"]:  # whoever ends the attempt finds the sums there
        METER.start(path_of(Path(task["work"]), task["lease"]["nonce"], rank))
    try:
        facts = load_object(task["stage"])(job_of(task)) or {}
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        result = {"facts": facts, "gpu": gpu_name()}
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        result = {
            "time": time.monotonic(),  # one clock for all: which failed first
            "error": type(error).__name__,
            "message": str(error),
            "traceback": "".join(traceback.format_exception(error)),
        }
        if not isinstance(error, Interrupted):
            logger.warning("ends with %s: %s", type(error).__name__, error)
    METER.flush()
    write_json(folder / f"result-{rank}.json", result)
    if result.get("error", "Interrupted") != Interrupted.__name__:
        # Now, with no clean-up that could wait for the others: they wait for this one.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(1)
    signal.alarm(LINGER)
    _leave_the_others()


def end_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(f"process {parent}, which started this one, is gone")


def job_of(task: dict[str, Any]) -> Job:
    """The parent's job, with a witness of its lease."""
    lease = task["lease"]
    return Job(
        spec=task["spec"],
        operations=task["operations"],
        inputs={name: _paths(value) for name, value in task["inputs"].items()},
        outputs={name: Path(path) for name, path in task["outputs"].items()},
        work=Path(task["work"]),
        lease=lease and Witness(**lease | {"folder": Path(lease["folder"])}),
        judge_requests=task["judge_requests"],
        processes=task["processes"],
        report_to=task["report_to"],
    )


def _paths(value: str | list[str]) -> Path | list[Path]:
    return Path(value) if isinstance(value, str) else [Path(item) for item in value]


def _leave_the_others() -> None:
    torch = sys.modules.get("torch")
    if torch and torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(os.environ["RANK"]))
