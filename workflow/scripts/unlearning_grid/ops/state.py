"""What is there: the state of every result that a plan lists."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unlearning_grid.runtime.attempts import FAILURE_NAME
from unlearning_grid.runtime.lease import is_running
from unlearning_grid.runtime.manifest import NAME, RUN_NAME
from unlearning_grid.spec.canonical import digest, digest_file


def state_digest(plan: Mapping[str, Any]) -> str:
    """Digest over what stands in every planned folder, failures included."""
    names = (NAME, RUN_NAME, FAILURE_NAME, "work/attempts.jsonl")
    files = [Path(folder) / name for folder in sorted(plan["expected"]) for name in names]
    found = {path.as_posix(): digest_file(path) for path in files if path.is_file()}
    running = [folder for folder in sorted(plan["expected"]) if is_running(Path(folder))]
    return digest({"files": found, "running": running})
