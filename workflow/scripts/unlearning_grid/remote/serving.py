"""Running a judge server in the cluster: start it, announce it, stop it when nobody needs it."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shlex
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

import psutil

from unlearning_grid.errors import UserError
from unlearning_grid.remote.servers import (
    Announcement,
    announce,
    folder_of,
    read_announcement,
    trouble_with,
    wanted_mark,
    withdraw,
)
from unlearning_grid.runtime.lease import Lease, LeaseLost

log = logging.getLogger(__name__)

ASKED = "it was asked to"
LOG = "server.log"
VLLM = "vllm serve"
STANDARD = "{model} --revision {revision} --host {address} --port {port} --served-model-name {name}"
START_WITHIN = 3600.0  # seconds to load a model
GRACE = 20.0  # seconds between SIGTERM and SIGKILL; Slurm gives 30 in all
TELL_EVERY = 60.0  # seconds
TAIL = 25  # lines of a dead server's log that are shown
PORTS = 3  # tries, when another process takes the port first

# What a server's last words mean, and what to change.
_TROUBLES = (
    (
        r"out of memory|OutOfMemory|No available memory|KV cache|larger than the available",
        "its memory does not suffice: give --command a smaller --max-model-len, another "
        "--gpu-memory-utilization or a --tensor-parallel-size, or ask sbatch for more GPUs",
    ),
    (
        r"offline mode|LocalEntryNotFound|couldn't connect to|RepositoryNotFound|Cannot find|"
        r"RevisionNotFound|is not a valid model identifier|is not a local folder",
        "the model is not in the hub cache: fetch it on a node with a network (ops prefetch), and "
        "let HF_HOME name the same folder here; with a network here, export HF_HUB_OFFLINE=0",
    ),
    (r"unrecognized arguments|invalid choice|error: argument", "change --command"),
)
_PORT_TAKEN = re.compile(r"address already in use|EADDRINUSE|Errno 98", re.IGNORECASE)


@dataclass
class Service:
    """What to serve, and how long.

    Attributes:
        name: of the server, as configurations write it.
        repo, revision: the model on the hub.
        model: the name that requests use.
        host: this machine's name for the other nodes.
        command: starts the server. `{model} {revision} {address} {port} {name}` are filled in;
            without `{model}` in it they follow as vLLM wants them.
        idle: seconds without anybody who needs it, after which it stops.
        stop: set it to end the server, from a signal handler for example.
        heartbeat, stale_after: of the lease that keeps a second server of this name away.
        every: seconds between two looks at all of these.
    """

    name: str
    repo: str
    revision: str
    model: str
    host: str
    command: str = VLLM
    idle: float = 1800.0
    stop: threading.Event = field(default_factory=threading.Event)
    heartbeat: float = 5.0
    stale_after: float = 60.0
    every: float = 1.0

    def __post_init__(self) -> None:
        self.demand = Demand(self.name, self.idle)


def serve(service: Service) -> str:
    """Serve until nobody needs it or `service.stop` is set; returns why it ended.

    A server that ends by itself after it had answered is started again, elsewhere and with another
    key. Raises UserError when it cannot start, or when another one of this name lives.
    """
    folder = folder_of(service.name)
    lease = Lease(folder, service.heartbeat, service.stale_after)
    patience = time.monotonic() + 1.5 * service.stale_after
    if not lease.acquire(lambda: service.stop.is_set() or time.monotonic() > patience):
        if service.stop.is_set():
            return ASKED
        found = read_announcement(service.name)
        raise UserError(
            f"judge server {service.name} runs already, at {found.where if found else folder}"
        )
    try:
        while True:
            ended = _serve_once(service, lease)
            if ended is not None:
                return ended
            if service.stop.wait(service.every):  # Slurm ends all processes of a job at once
                return ASKED
            log.warning("judge server %s ended by itself; starting it again", service.name)
    except LeaseLost:
        return "another server took over"
    finally:
        lease.release()


class Demand:
    """Whether anybody needs the server: clients leave a mark every few seconds."""

    def __init__(self, name: str, idle: float) -> None:
        self.name, self.idle = name, idle
        self._first = self._mark = wanted_mark(name)
        self._since: float | None = None

    def begin(self) -> None:
        """Count from now on: it answers for the first time."""
        if self._since is None:
            self._since = time.monotonic()

    def is_over(self) -> bool:
        """Whether nobody has needed it for as long as it may idle.

        A mark that moved was left since the last look: no clocks of two hosts are compared.
        """
        if self._since is None:
            return False
        now, mark = time.monotonic(), wanted_mark(self.name)
        if mark != self._mark:
            self._mark, self._since = mark, now
        return now > self._since + self.idle

    def was_there(self) -> bool:
        """Whether anybody has needed it in the life of this job."""
        return wanted_mark(self.name) != self._first


def words_of(service: Service, address: str, port: int) -> list[str]:
    """The command line of the server. It holds no key."""
    words = shlex.split(service.command)
    if not any("{model}" in word for word in words):
        words += STANDARD.split()
    known = {
        "{model}": service.repo,
        "{revision}": service.revision,
        "{address}": address,
        "{port}": str(port),
        "{name}": service.model,
    }
    for place, value in known.items():  # str.format would stumble over JSON in a word
        words = [word.replace(place, value) for word in words]
    return words


def _serve_once(service: Service, lease: Lease) -> str | None:
    """Why serving ended; None when the server itself did, after it had answered."""
    for attempt in range(PORTS):
        process = _Process(service)
        try:
            ended = _wait_until_it_answers(process, lease)
            if ended:
                return ended
            announce(process.announcement)
            service.demand.begin()
            log.info("judge server %s: %s", service.name, process.announcement.where)
            return _watch(process, lease)
        except _Died as error:
            if not _PORT_TAKEN.search(error.tail) or attempt == PORTS - 1:
                raise UserError(str(error)) from None
            log.info("port %d was taken by another process meanwhile", process.announcement.port)
        finally:
            try:
                withdraw(service.name, process.announcement.nonce)
            finally:  # an announcement that others can read is refused here, too
                process.end()
    raise AssertionError("the last attempt returns or raises")


def _wait_until_it_answers(process: _Process, lease: Lease) -> str | None:
    """None once it answers; else why nobody waits any more. Raises _Died."""
    service, began = process.service, time.monotonic()
    told = began
    while True:
        process.check()
        ended = _ending(service, lease)
        if ended:
            return ended
        trouble = trouble_with(process.announcement, timeout=2.0)
        if trouble is None:
            return None
        now = time.monotonic()
        if now > told + TELL_EVERY:
            told = now
            last = " ".join(process.tail(1).split())[:200]
            log.info(
                "starting for %.0f min: %s; its log ends: %s", (now - began) / 60, trouble, last
            )
        if now > began + START_WITHIN:
            raise UserError(
                f"judge server {service.name} does not answer at {process.announcement.where} "
                f"({trouble}); if it says that it is up, give --host a name under which this "
                f"machine is known:\n{process.tail(TAIL)}"
            )
        service.stop.wait(service.every)


def _watch(process: _Process, lease: Lease) -> str | None:
    while process.is_alive():
        ended = _ending(process.service, lease)
        if ended:
            return ended
        process.service.stop.wait(process.service.every)
    log.warning("its log ends:\n%s", process.tail(TAIL))
    return None


def _ending(service: Service, lease: Lease) -> str | None:
    lease.check()
    if service.stop.is_set():
        return ASKED
    if service.demand.is_over():
        return f"nobody needed it for {service.idle / 60:.0f} min"
    return None


class _Died(Exception):
    """The server ended before it answered. The message holds the tail of its log."""

    def __init__(self, message: str, tail: str) -> None:
        super().__init__(message)
        self.tail = tail


class _Process:
    """The server's process, with a key and a port of its own."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.log = folder_of(service.name) / LOG
        local = service.host in ("localhost", "127.0.0.1")
        address = "127.0.0.1" if local else "0.0.0.0"
        self.announcement = Announcement(
            name=service.name,
            model=service.model,
            host=service.host,
            port=_free_port(address),
            key=secrets.token_urlsafe(32),
            nonce=secrets.token_hex(8),
            job=os.environ.get("SLURM_JOB_ID"),
        )
        words = words_of(service, address, self.announcement.port)
        log.info("judge server %s starts: %s (log: %s)", service.name, shlex.join(words), self.log)
        with open(self.log, "wb") as output:
            self._process = self._start(words, output)
        self._family: list[psutil.Process] = []

    def _start(self, words: list[str], output: BinaryIO) -> subprocess.Popen[bytes]:
        defaults = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        try:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=defaults | dict(os.environ) | {"VLLM_API_KEY": self.announcement.key},
            )
        except OSError as error:
            raise UserError(
                f"{words[0]}: {error.strerror}; give --command the path of the vLLM "
                "environment's program, as in --command 'ENVIRONMENT/bin/vllm serve'"
            ) from None

    def is_alive(self) -> bool:
        """Whether it still runs; remembers its children, which outlive a crash."""
        with suppress(psutil.NoSuchProcess):
            self._family = psutil.Process(self._process.pid).children(recursive=True)
        return self._process.poll() is None

    def check(self) -> None:
        """Raise _Died with its last words when it is gone."""
        if self.is_alive():
            return
        tail = self.tail(TAIL)
        found = [fix for pattern, fix in _TROUBLES if re.search(pattern, tail, re.IGNORECASE)]
        raise _Died(
            f"judge server {self.service.name} ended with status {self._process.returncode} before "
            f"it answered{'; ' + found[0] if found else ''}. The end of {self.log}:\n{tail}",
            tail,
        )

    def tail(self, lines: int) -> str:
        """The last lines of its log, without the key."""
        with open(self.log, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - 20_000))
            text = stream.read().decode("utf-8", "replace")
        return "\n".join(text.replace(self.announcement.key, "***").splitlines()[-lines:])

    def end(self) -> None:
        """SIGTERM, then SIGKILL for whoever is left of it and its children."""
        self.is_alive()
        self._process.terminate()  # nothing happens to one that has ended
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self._process.kill()
        self._process.wait()
        for process in psutil.wait_procs(self._family, timeout=1.0)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def own_host(given: str | None = None) -> str:
    """A name under which the other nodes of the cluster find this machine.

    The given one, else Slurm's name of the node where it resolves, which is the usual case, else
    the machine's own. Raises UserError when none of them resolves.
    """
    names = [given] if given else [os.environ.get("SLURMD_NODENAME"), socket.gethostname()]
    for name in filter(None, names):
        with suppress(OSError):
            socket.getaddrinfo(name, None)
            return name
    known = " and ".join(filter(None, names))
    raise UserError(f"{known}: no such host; give --host a name or address of this machine")
