"""How many GPUs a job holds, told without loading torch."""

import os
import sys
from pathlib import Path

_NONE = ("", "NoDevFiles")  # what stands in CUDA_VISIBLE_DEVICES for no device


def held(processes: int = 1, devices: Path = Path("/dev")) -> int | None:
    """GPUs that this job keeps from others; None when nothing tells before the work is done.

    Under Slurm these are the ones of the allocation, used or not. Elsewhere a job takes what it
    uses: one per process where there are several.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = [] if named is None else [n for n in named.split(",") if n.strip() not in _NONE]
    number = sum(not name.strip().startswith("-") for name in visible)
    if "SLURM_JOB_ID" in os.environ or (named is not None and not number):
        return number
    if not any(devices.glob("nvidia[0-9]*")):
        return 0
    return processes if processes > 1 else None


def used() -> int:
    """GPUs that this process works on: 1 once it has put something on one, else 0."""
    torch = sys.modules.get("torch")
    return int(torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized())
