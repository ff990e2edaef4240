"""Commits of what a configuration leaves unpinned, and what to say when something is not there.

`prefetch` asks the hub once and writes config/hub.lock.yaml: kind -> repository -> commit. Whoever
builds a spec afterwards holds to it, so a later upload reaches no run by itself.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from unlearning_grid.config import load_yaml
from unlearning_grid.errors import UserError

LOCK = "config/hub.lock.yaml"
COMMIT = re.compile(r"[0-9a-f]{40}")
HINT = "Fetch it where the hub is in reach, with `make prefetch`; jobs need the same HF_HOME."


def locked(root: Path, kind: str, repo: str) -> str | None:
    """The commit that the lock file of a checkout has for a repository; None without one.

    Args:
        kind: "dataset" or "model".
    Raises UserError when the file holds anything but commits.
    """
    return read_lock(root).get(kind, {}).get(repo)


def read_lock(root: Path) -> dict[str, dict[str, str]]:
    """Kind -> repository -> commit; empty without a lock file. Raises UserError when it is bad."""
    path = root / LOCK
    try:
        stat = path.stat()
    except FileNotFoundError:
        return {}
    return _read(path, stat.st_mtime_ns, stat.st_size)


def cannot_load(what: str, location: str, revision: str | None, error: Exception) -> UserError:
    """The error of a job that cannot read a model: from a folder, or from the hub's cache.

    Args:
        what: the key of the configuration and the part that is read.
        location: a folder's absolute path, or a repository's name.
    """
    reason = " ".join(str(error).split())
    if Path(location).is_absolute():
        return UserError(f"{what} {location}: {reason}")
    return UserError(f"{what} {location} at {revision}: {reason} {HINT}")


@lru_cache(maxsize=4)
def _read(path: Path, _mtime_ns: int, _size: int) -> dict[str, dict[str, str]]:
    held: Any = load_yaml(path) or {}
    good = isinstance(held, dict) and all(
        isinstance(repos, dict) and all(COMMIT.fullmatch(str(commit)) for commit in repos.values())
        for repos in held.values()
    )
    if not good:
        raise UserError(
            f"{LOCK}: must map kind and repository to a commit of 40 hex digits; "
            "restore it from git, or delete it and run `make prefetch`"
        )
    return held
