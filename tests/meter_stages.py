"""Stages for tests/unit/test_meter.py that count requests in processes of their own."""

import os
import signal
import time

from unlearning_grid.errors import UserError
from unlearning_grid.runtime import meter
from unlearning_grid.runtime.job import Job
from unlearning_grid.runtime.launch import run_processes

RANK = int(os.environ.get("RANK", "0"))


def ask(job: Job) -> dict:
    """Each process sends its own number of requests; the settings say how the last one ends."""
    meter.METER.add("reward", {"sent": 10**RANK, "input_tokens": 5})
    if RANK == 0:
        for path in job.outputs.values():
            path.write_text("made")
    elif job.settings["end"] == "killed":
        meter.METER.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    elif job.settings["end"] == "failed":
        raise UserError("no judge")
    if job.settings["end"] != "well" and RANK == 0:
        time.sleep(60)
    return {}


def ask_in_processes(job: Job) -> dict:
    """The stage itself, as Snakemake's job runs it."""
    meter.METER.add("audit", {"sent": 7})
    return run_processes(job, "meter_stages:ask")
