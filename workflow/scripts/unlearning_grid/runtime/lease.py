"""A lease on a folder: one worker at a time, also across hosts, also when a holder dies.

A lease is a file `lease-<n>.json`, made with O_EXCL; the highest n is the holder's. A holder
rewrites its file every few seconds (the heartbeat). Whoever has watched an unchanged heartbeat for
`stale_after` seconds, by its own clock, may create `lease-<n+1>.json`: the file system lets exactly
one do so. No clocks are compared and no file locks are used, since folders may lie on NFS. A holder
that was thought dead (suspended, say) finds the higher number at its next check and stops.
"""

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from unlearning_grid.runtime.atomic import read_json, write_json

log = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Another worker has taken over the folder: stop at once and write nothing more."""


@dataclass(frozen=True)
class Witness:
    """The lease of a process's parent: a child can check it, and neither prolong nor release it."""

    folder: Path
    number: int
    nonce: str
    holder: int  # process id

    def check(self) -> None:
        """Raise LeaseLost when another worker has taken over, or when the parent is gone."""
        if os.getppid() != self.holder:
            raise LeaseLost(f"{self.folder}: its holder, process {self.holder}, is gone")
        _check(self.folder, self.number, self.nonce)


class Lease:
    """Exclusive use of `folder`; acquire() waits for a live holder.

    Args:
        heartbeat: seconds between two signs of life.
        stale_after: seconds without a sign of life after which a holder counts as dead.

    Attributes:
        since: when it was acquired, by the file system's clock.
        gone: nonce of each holder that it was taken over from -> its last sign of life, same clock.
    """

    def __init__(self, folder: Path, heartbeat: float = 5.0, stale_after: float = 60.0) -> None:
        self.folder = folder
        self.heartbeat = heartbeat
        self.stale_after = stale_after
        self.nonce = secrets.token_hex(8)
        self.since: float | None = None
        self.gone: dict[str, float] = {}
        self._number: int | None = None
        self._beats = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until the folder is ours (True), or until `give_up()` says so (False)."""
        watched: tuple[int, Any, float] | None = None
        told = False
        while True:
            if give_up():
                return False
            self.folder.mkdir(parents=True, exist_ok=True)  # a holder may have cleaned it away
            number, content = _current(self.folder)
            if number is None or content is None or content.get("released"):
                if self._create((number or 0) + 1):
                    return True
                continue
            now = time.monotonic()
            if watched is None or watched[:2] != (number, content):
                watched = (number, content, now)
            if self._is_dead(content) or now - watched[2] > self.stale_after:
                log.info("taking over %s from a worker that is gone: %s", self.folder, content)
                if self._create(number + 1):
                    return True
                continue
            if not told:
                log.info("%s is in use by %s; waiting for it", self.folder, content)
                told = True
            time.sleep(min(self.heartbeat, 1.0))

    def check(self) -> None:
        """Raise LeaseLost when another worker has taken over."""
        _check(self.folder, self._number, self.nonce)

    def witness(self) -> Witness:
        """What a child of this process may check before it writes."""
        assert self._number is not None
        return Witness(self.folder, self._number, self.nonce, os.getpid())

    def release(self) -> None:
        """Give the folder back. Safe to call twice, and after the lease was lost."""
        self._stop.set()
        if self._thread:
            self._thread.join()
            self._thread = None
        if self._number is not None:
            try:
                self.check()
                self._write(released=True)
            except LeaseLost:
                pass
            self._number = None

    def _create(self, number: int) -> bool:
        try:
            handle = os.open(self._file(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        with os.fdopen(handle, "w") as stream:
            json.dump(self._content(), stream)
            stream.flush()
            self.since = os.fstat(stream.fileno()).st_mtime
        highest, _ = _current(self.folder)
        if highest != number:  # we acted on an old look at the folder
            self._file(number).unlink(missing_ok=True)
            return False
        self._number = number
        self.gone = {n: seen for n, seen in signs_of_life(self.folder).items() if n != self.nonce}
        for old in self.folder.glob("lease-*.json"):
            if int(old.stem.removeprefix("lease-")) < number:
                old.unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return True

    def _beat(self) -> None:
        while not self._stop.wait(self.heartbeat):
            try:
                self.check()
                self._beats += 1
                self._write()
            except (LeaseLost, OSError) as error:
                log.warning("heartbeat of %s: %s", self.folder, error)

    def _write(self, released: bool = False) -> None:
        assert self._number is not None
        write_json(self._file(self._number), self._content() | {"released": released})

    def _content(self) -> dict[str, Any]:
        return {
            "nonce": self.nonce,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": psutil.Process().create_time(),
            "slurm_job": os.environ.get("SLURM_JOB_ID"),
            "beats": self._beats,
        }

    def _file(self, number: int) -> Path:
        return _file(self.folder, number)

    @staticmethod
    def _is_dead(content: dict[str, Any]) -> bool:
        """Whether the holder ran on this host and its process is gone."""
        if content.get("host") != socket.gethostname() or "pid" not in content:
            return False
        try:
            started = psutil.Process(content["pid"]).create_time()
        except psutil.NoSuchProcess:
            return True
        return abs(started - content["started"]) > 1.0


def is_held(folder: Path) -> bool:
    """Whether a worker that is not known to be gone holds the folder."""
    _, content = _current(folder)
    return bool(content) and not content.get("released") and not Lease._is_dead(content)


def is_running(folder: Path) -> bool:
    """Whether a worker holds one of a result's work folders."""
    return any(is_held(path.parent) for path in folder.glob("work/*/lease-*.json"))


def signs_of_life(folder: Path) -> dict[str, float]:
    """Nonce of each holder that left a lease in the folder -> when it last wrote it."""
    found = {}
    for path in sorted(folder.glob("lease-*.json")):
        content = read_json(path)
        with suppress(FileNotFoundError):  # taken over while we look
            if content and "nonce" in content:
                found[content["nonce"]] = path.stat().st_mtime
    return found


def _current(folder: Path) -> tuple[int | None, dict[str, Any] | None]:
    """Highest lease number and its content; an empty file is a holder that just began."""
    numbers = [int(p.stem.removeprefix("lease-")) for p in folder.glob("lease-*.json")]
    if not numbers:
        return None, None
    number = max(numbers)
    return number, read_json(_file(folder, number)) or {"nonce": "starting"}


def _check(folder: Path, number: int | None, nonce: str) -> None:
    highest, content = _current(folder)
    if highest != number or not content or content.get("nonce") != nonce:
        raise LeaseLost(f"{folder}: taken over by {content}")


def _file(folder: Path, number: int) -> Path:
    return folder / f"lease-{number}.json"
