"""Logs: the whole story in the rule's log file, the progress lines on the terminal too."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger("unlearning_grid")

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Send logging, stdout and stderr to `path` (appended); our own INFO lines to the terminal.

    Libraries print to stdout and stderr as they like; a Snakemake job's would be lost or mixed
    with those of its neighbours, so both go into the file, C-level writes included.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    terminal = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8", errors="replace")
    saved = os.dup(1), os.dup(2)
    with open(path, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    handlers = _handlers(terminal, path)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.INFO)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
        root.setLevel(level)
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        terminal.close()


def _handlers(terminal, path: Path) -> list[logging.Handler]:
    to_file = logging.StreamHandler(sys.stderr)
    to_file.setFormatter(logging.Formatter(_FORMAT, "%Y-%m-%d %H:%M:%S"))
    to_terminal = logging.StreamHandler(terminal)
    where = path.parent.as_posix().removeprefix("results/")
    to_terminal.setFormatter(logging.Formatter(f"{where}: %(message)s"))
    to_terminal.addFilter(
        lambda record: record.name.startswith("unlearning_grid") or record.levelno >= logging.ERROR
    )
    return [to_file, to_terminal]
