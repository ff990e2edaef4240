"""Judges that are served inside the cluster: announced in a file, found, and waited for.

A judge entry names one by `base_url: cluster:NAME`. Its server (remote.serving) writes where it
listens, and the key that it takes, to `.judge-servers/NAME/announcement.json` of the working
directory. That is the one file with the key: the folder and the file are their owner's alone, or
nothing is sent. The address, the key and the Slurm job stand in no spec and in no cache key, so a
server that moved is the same judge. What it serves does: repo and commit are its model's name.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from http.client import HTTPException
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.remote.faults import Rejected

log = logging.getLogger(__name__)

SERVERS = Path(".judge-servers")
WANTED = "wanted"
LOOK_EVERY = 2.0  # seconds between two looks for a server
TELL_EVERY = 60.0  # seconds between two lines about a server that is not there
WANT_EVERY = 5.0  # seconds between two marks
ANSWER_WITHIN = 10.0  # seconds that a busy server has to say which models it serves


@dataclass(frozen=True)
class Announcement:
    """Where a server listens.

    Attributes:
        name: of the server, as configurations write it.
        model: what it serves, by the name that requests must use.
        host, port: its address within the cluster.
        key: bearer token; never printed with the rest.
        nonce: another one for each start of a server.
        job: Slurm job id, or None outside Slurm.
    """

    name: str
    model: str
    host: str
    port: int
    key: str = field(repr=False)
    nonce: str
    job: str | None = None

    @property
    def url(self) -> str:
        """Base URL of its API."""
        return f"http://{self.host}:{self.port}/v1"

    @property
    def where(self) -> str:
        """For people: address and job."""
        return f"{self.host}:{self.port}" + (f" (Slurm job {self.job})" if self.job else "")


def folder_of(name: str) -> Path:
    """Folder of a server, made for its owner alone. Raises UserError when others can enter it."""
    folder = SERVERS / name
    for path in (SERVERS, folder):
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
    _check_private(folder, os.stat(folder), "chmod 700")
    return folder


def announce(announcement: Announcement) -> None:
    """Write the announcement, at once and for its owner alone."""
    path = _file(folder_of(announcement.name))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(asdict(announcement), stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def withdraw(name: str, nonce: str) -> None:
    """Take the announcement away, unless a later server wrote it."""
    found = read_announcement(name)
    if found and found.nonce == nonce:
        _file(folder_of(name)).unlink(missing_ok=True)


def read_announcement(name: str) -> Announcement | None:
    """What a server announced; None when there is nothing, or nothing whole.

    Raises UserError when the file is somebody else's or others can read it.
    """
    path = _file(folder_of(name))
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EACCES):  # a network disk that is behind
            return None
        raise UserError(f"{path}: {error.strerror}; remove it and start the server again") from None
    with os.fdopen(handle, encoding="utf-8", errors="replace") as stream:
        _check_private(path, os.fstat(stream.fileno()), "chmod 600")
        try:
            return _read(json.loads(stream.read()))
        except (ValueError, OSError):
            return None


def trouble_with(announcement: Announcement, timeout: float = ANSWER_WITHIN) -> str | None:
    """Why requests cannot go to this server; None when it answers and serves the model."""
    request = urllib.request.Request(f"{announcement.url}/models")
    request.add_unredirected_header("Authorization", f"Bearer {announcement.key}")
    # A proxy for the way out of the cluster must not get what stays inside.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as reply:
            models = {model["id"] for model in json.loads(reply.read())["data"]}
    except urllib.error.HTTPError as error:
        return f"it replies HTTP {error.code}"
    except (OSError, HTTPException) as error:
        return f"it does not answer: {getattr(error, 'reason', error)}"
    except (ValueError, KeyError, TypeError):
        return "it does not reply as a judge server"
    return None if announcement.model in models else f"it serves {sorted(models)}"


def start_command(name: str) -> str:
    """For messages: how a server is started."""
    return f"python -m unlearning_grid.ops judge-server start {name}"


class Discovery:
    """Finds the server of one name, and finds it again when it has moved. Threads share it."""

    def __init__(self, name: str, block: Mapping[str, Any], patience: float) -> None:
        """`block`: the judge's; `patience`: seconds to wait for a server that is not there."""
        self.name = name
        self.judge, self.model = block["name"], block["model"]
        self.patience = patience
        self._lock = threading.Lock()
        self._found: Announcement | None = None
        self._given_up = False
        self._wanted = 0.0

    def find(self, stop: threading.Event) -> Announcement | None:
        """The server that answers; waits for one, and returns None once `stop` is set.

        Raises Rejected (`unavailable`) when patience ends; from then on one look has to do, until a
        server is there again. Raises UserError when another model is served under this name.
        """
        with self._lock:
            if self._found is None:
                self._found = self._search(stop)
            return None if stop.is_set() else self._found

    def is_lost(self, server: Announcement) -> bool:
        """Whether a request that failed was sent to a server that is no longer the one to ask."""
        with self._lock:
            if self._found is not server:
                return True
            if read_announcement(self.name) == server and trouble_with(server) is None:
                return False
            self._found = None
            return True

    def want(self) -> None:
        """Leave the mark that keeps a server up. Cheap: call it as often as you like."""
        now = time.monotonic()
        if now < self._wanted + WANT_EVERY:
            return
        self._wanted = now
        mark_wanted(self.name)

    def _search(self, stop: threading.Event) -> Announcement | None:
        began, told = time.monotonic(), -TELL_EVERY
        while not stop.is_set():
            server = read_announcement(self.name)
            why = self._trouble(server)
            if server and why is None:
                log.info("judge %s: server %s is at %s", self.judge, self.name, server.where)
                self._given_up = False
                return server
            waited = time.monotonic() - began
            if self._given_up or waited >= self.patience:
                self._given_up = True
                raise Rejected("unavailable", f"no judge server {self.name}: {why}")
            if waited >= told + TELL_EVERY:
                self._tell(why, waited)
                told = waited
            stop.wait(min(LOOK_EVERY, self.patience))
        return None

    def _trouble(self, server: Announcement | None) -> str | None:
        if server is None:
            return "none is announced"
        if server.model != self.model:
            raise UserError(
                f"judges.{self.judge}: server {self.name} at {server.where} serves {server.model}, "
                f"and the configuration wants {self.model}; stop it and start it again, or give "
                "the new model a server of another name"
            )
        why = trouble_with(server)
        return why and f"{server.where} is announced, and {why}"

    def _tell(self, why: str | None, waited: float) -> None:
        log.info(
            "judge %s: waiting for server %s (%s), %.0f of at most %.0f min; to start one: %s",
            self.judge,
            self.name,
            why,
            waited / 60,
            self.patience / 60,
            start_command(self.name),
        )


def mark_wanted(name: str) -> None:
    """Tell the server of this name, running or to come, that somebody needs it."""
    with suppress(OSError):  # a full disk must not fail a verdict
        (folder_of(name) / WANTED).touch()


def wanted_mark(name: str) -> int | None:
    """When a mark was left, in nanoseconds of whatever clock; to be compared with itself only."""
    try:
        return (folder_of(name) / WANTED).stat().st_mtime_ns
    except OSError:
        return None


def _file(folder: Path) -> Path:
    return folder / "announcement.json"


def _check_private(path: Path, found: os.stat_result, fix: str) -> None:
    if found.st_uid != os.getuid():
        raise UserError(
            f"{path} belongs to user {found.st_uid}: a judge server is for its owner's jobs; work "
            "in a directory of your own, or remove it"
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise UserError(
            f"{path} can be used by others, and holds a key: {fix} {path}, and start the server "
            "again for a new key"
        )


def _read(content: Any) -> Announcement | None:
    kinds = {"port": int, "job": (str, type(None))}
    names = [entry.name for entry in fields(Announcement)]
    if not isinstance(content, dict) or set(content) != set(names):
        return None
    if any(not isinstance(content[name], kinds.get(name, str)) for name in names):
        return None
    return Announcement(**content)
