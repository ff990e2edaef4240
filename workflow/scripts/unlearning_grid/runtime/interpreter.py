"""Another interpreter for a stage, where Snakemake does not make the environments itself.

`--sdm conda` gives each rule its environment. Who runs the grid from one virtual environment keeps
vLLM, which pins much, in a second one: `.venv-vllm` beside the first (`make vllm`), or where
`generate.python` says. The script that Snakemake wrote for the job then starts once more in this
very process, under that interpreter.
"""

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from unlearning_grid.config import expand_path

BESIDE = ".venv-vllm/bin/python"


def other_interpreter(settings: Mapping[str, Any], python: str | None) -> Path | None:
    """The interpreter that a stage wants in place of the one that runs; None where it wants none.

    Args:
        settings: of the stage; only those with `backend` vllm want one.
        python: what `generate.python` says; None takes the environment beside the checkout's own,
            where there is one and this one has no vLLM.
    """
    if settings.get("backend") != "vllm":
        return None
    path = Path(os.path.abspath(expand_path(python or BESIDE)))
    if path == Path(os.path.abspath(sys.executable)):
        return None
    if python is None and (find_spec("vllm") or not path.is_file()):
        return None
    return path


def check_interpreter(path: Path) -> str | None:
    """What is wrong with an interpreter, for people; None where it can be started."""
    if os.access(path, os.X_OK) and path.is_file():
        return None
    return f"generate.python: {path} cannot be started; make it with `make vllm`, or leave it out"


def start_again(path: Path) -> NoReturn:
    """Run this process's script under another interpreter, in place of what runs now."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, [str(path), *sys.argv])
