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
    terminal = Terminal(os.dup(2), path.parent.as_posix().removeprefix("results/"))
    saved = os.dup(1), os.dup(2)
    with open(path, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    handlers = [_to_file(_FORMAT), terminal]
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
        terminal.stream.close()


class Terminal(logging.StreamHandler):
    """What people see while a job runs: our own lines and errors, each with its result's name."""

    def __init__(self, descriptor: int, where: str) -> None:
        super().__init__(
            os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="replace")
        )
        self.where = where
        self.setFormatter(logging.Formatter(f"{where}: %(message)s"))

    def filter(self, record: logging.LogRecord) -> bool:
        """Leave out what libraries say below ERROR."""
        return record.name.startswith("unlearning_grid") or record.levelno >= logging.ERROR


def terminal_in_use() -> Terminal | None:
    """The terminal that this process reports to, if it does."""
    found = (h for h in logging.getLogger().handlers if isinstance(h, Terminal))
    return next(found, None)


def log_as_one_of_many(rank: int, terminal: Terminal | None) -> None:
    """Set up logging in one of the processes of a stage; stderr is the stage's log file already.

    The first one speaks for all, also on the terminal; of the others only warnings are kept.
    """
    root = logging.getLogger()
    root.setLevel(logging.WARNING if rank else logging.INFO)
    root.addHandler(_to_file(_FORMAT.replace("%(name)s", f"[process {rank}] %(name)s")))
    if terminal:
        root.addHandler(terminal)


def _to_file(layout: str) -> logging.Handler:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(layout, "%Y-%m-%d %H:%M:%S"))
    return handler
