"""Another interpreter for a stage, where Snakemake does not make the environments itself.

`--sdm conda` gives each rule its environment. Who runs the grid from one virtual environment keeps
vLLM, which pins much, in a second one and names its interpreter in `generate.python`: the script
that Snakemake wrote for the job then starts once more in this very process, under that interpreter.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

from unlearning_grid.config import expand_path


def other_interpreter(name: str | None) -> Path | None:
    """The interpreter that a setting names; None for none, and for the one that runs already."""
    if name is None:
        return None
    path = Path(os.path.abspath(expand_path(name)))
    return None if path == Path(os.path.abspath(sys.executable)) else path


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
