"""Sending one request until there is a reply, with patience for what passes.

Outside the code digests: how often something was asked does not change what was asked.
"""

from __future__ import annotations

import logging
import math
import os
import random
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from unlearning_grid.checks.served import server_name
from unlearning_grid.errors import UserError
from unlearning_grid.remote.faults import (
    Fault,
    Rejected,
    Transient,
    classify,
    read_json,
    reports_error,
)
from unlearning_grid.remote.requests import Request
from unlearning_grid.remote.servers import Announcement, Discovery

log = logging.getLogger(__name__)

TELL_EVERY = 20.0  # seconds
LOSSES = 3  # servers of the cluster that one request may lose; perhaps it is what ends them
OPENAI = "https://api.openai.com/v1"  # stated, or the SDK would take OPENAI_BASE_URL unasked


@dataclass(frozen=True)
class Patience:
    """How long to try. All times in seconds.

    Attributes:
        attempts: tries of one request, the first included.
        total: time after which a request is not tried again.
        first_wait, longest_wait: backoff, doubled from one to the other, plus as much as
            `first_wait` again by chance.
        read_timeout: time without a byte from the server after which a try counts as stalled.
        connect_timeout: time to open a connection.
        probe: tries of a probe, after a request was given up.
        outage: that many probes without a reply, and the rest of a batch is not asked.
        server: time to wait for a server of the cluster that is not there.
    """

    attempts: int = 10
    total: float = 900.0
    first_wait: float = 1.0
    longest_wait: float = 60.0
    read_timeout: float = 180.0
    connect_timeout: float = 20.0
    probe: int = 3
    outage: int = 4
    server: float = 1800.0

    def for_probe(self) -> Patience:
        """Enough for a busy server; a stalled one is not waited for again."""
        return replace(self, attempts=min(self.probe, self.attempts), total=self.total / 10)


PATIENCE = Patience()


@dataclass(frozen=True)
class Sent:
    """What came of a request: the reply's JSON, or why there is none (judge.base.FAILURES)."""

    body: Mapping[str, Any] | None
    failure: str | None
    detail: str | None
    attempts: int
    latency: float  # seconds of the last try


class Stopped(Exception):
    """The batch was stopped while this request waited."""


class Lost(Exception):
    """The server of the cluster that this request went to is no longer there."""


class Gate:
    """One pause for all threads: when the server asks one of them to wait, all do."""

    def __init__(self) -> None:
        self._until = 0.0
        self._lock = threading.Lock()

    def pause(self, seconds: float) -> None:
        """Let nobody pass for so many seconds; a longer pause that runs already stays."""
        with self._lock:
            news = seconds > self.left() + 1.0
            self._until = max(self._until, time.monotonic() + seconds)
        if news:
            log.info("the server asks for a pause of %.0f s", seconds)

    def left(self) -> float:
        """Seconds until the gate opens."""
        return max(0.0, self._until - time.monotonic())


class Transport:
    """Sends requests of one `judges` entry; threads share it."""

    def __init__(self, block: Mapping[str, Any], patience: Patience | None = None) -> None:
        self.patience = patience or PATIENCE
        self._block = block
        self._gate = Gate()
        self._pid = 0
        self._keys: set[str] = set()
        self._told = -math.inf
        self._client: Any = None  # for an address
        self._discovery: Discovery | None = None  # for a server of the cluster

    def open(self) -> None:
        """Read the key and the server's address. Call before the first send of a batch.

        Raises UserError when the environment lacks either. A server of the cluster is looked for
        when something is sent.
        """
        if self._pid == os.getpid():
            return
        server = server_name(self._block["base_url"])
        if server is not None:
            self._discovery = Discovery(server, self._block, self.patience.server)
            self._pid = os.getpid()
            return
        name, variable = self._block["name"], self._block["key_variable"]
        key = os.environ.get(variable)
        if not key:
            raise UserError(
                f"judges.{name}.key_variable: {variable} is not set in the environment; export "
                "the key under that name (any word for a server that wants none)"
            )
        url = _address(self._block)
        self._client = _sdk(url, key, self.patience)
        self._keys.add(key)
        self._pid = os.getpid()

    def want(self) -> None:
        """Tell a server of the cluster that it is needed; call while replies are awaited."""
        if self._discovery:
            self._discovery.want()

    def send(self, request: Request, stop: threading.Event, probe: bool = False) -> Sent:
        """Send until there is a reply or patience ends; then the failure is `unavailable`.

        A probe ends after few tries. Raises UserError for what is wrong with the configuration,
        Stopped once `stop` is set. A server of the cluster that went away is waited for, and the
        request starts anew with the next one.
        """
        task = _Task(self, request, stop)
        for _ in range(LOSSES):
            with suppress(Lost):
                return self._send(task, stop, probe)
        detail = f"{LOSSES} servers went away while they were asked this"
        return Sent(None, "unavailable", detail, task.attempts, task.latency)

    def _send(self, task: _Task, stop: threading.Event, probe: bool) -> Sent:
        """Send to the server of now. Raises Lost when it goes away meanwhile."""
        from tenacity import (
            Retrying,
            retry_if_exception_type,
            sleep_using_event,
            stop_after_attempt,
            stop_any,
            stop_before_delay,
            stop_when_event_set,
        )

        patience = self.patience.for_probe() if probe else self.patience
        retrying = Retrying(
            retry=retry_if_exception_type(Transient),
            stop=stop_any(
                stop_after_attempt(patience.attempts),
                stop_before_delay(patience.total),
                stop_when_event_set(stop),
            ),
            wait=self._wait,
            sleep=sleep_using_event(stop),
            reraise=True,
        )
        try:
            task.connect()
            body, failure, detail = retrying(task.attempt), None, None
        except Transient as error:
            if stop.is_set():
                raise Stopped from None
            body, failure, detail = None, "unavailable", str(error)
        except Rejected as error:
            body, failure, detail = None, error.failure, str(error)
        return Sent(body, failure, detail, task.attempts, task.latency)

    def connection(self, stop: threading.Event) -> tuple[Any, Announcement | None]:
        """The SDK's client to send with, and the server of the cluster that it speaks to."""
        if self._discovery is None:
            return self._client, None
        server = self._discovery.find(stop)
        if server is None:
            raise Stopped
        self._keys.add(server.key)
        return _sdk(server.url, server.key, self.patience, inside=True), server

    def is_lost(self, server: Announcement | None) -> bool:
        """Whether a server of the cluster, which failed a request, is no longer there."""
        return bool(server and self._discovery and self._discovery.is_lost(server))

    def _wait(self, state: Any) -> float:
        chance = random.uniform(0, self.patience.first_wait)
        asked = state.outcome.exception().wait
        if asked:
            return asked + chance
        doubled = self.patience.first_wait * 2.0 ** min(state.attempt_number - 1, 30)
        return min(doubled, self.patience.longest_wait) + chance

    def tell(self, trouble: str) -> None:
        """Log a failed try; of many, one every now and then."""
        if time.monotonic() > self._told + TELL_EVERY:
            self._told = time.monotonic()
            log.info("judge %s: %s; trying again", self._block["name"], trouble)

    def hide(self, text: str) -> str:
        """A server's words without the key, which some servers quote."""
        for key in tuple(self._keys):
            if len(key) >= 8:  # a short one is a word for a server that wants none
                text = text.replace(key, "***")
        return text

    def scrub(self, text: str) -> str:
        """The same, short and on one line."""
        return " ".join(self.hide(text).split())[:400]


class _Task:
    """The tries of one request."""

    def __init__(self, transport: Transport, request: Request, stop: threading.Event) -> None:
        self.transport = transport
        self.request = request
        self.stop = stop
        self.attempts = 0
        self.latency = 0.0
        self._began = time.monotonic()
        self._client: Any = None
        self._server: Announcement | None = None

    def connect(self) -> None:
        """Choose where to send. Waits for a server of the cluster: that is no part of the tries."""
        self._client, self._server = self.transport.connection(self.stop)
        self._began = time.monotonic()

    def attempt(self) -> Mapping[str, Any]:
        """One try, once the gate is open."""
        gate, patience = self.transport._gate, self.transport.patience
        while (left := gate.left()) and not self.stop.is_set():
            if time.monotonic() - self._began + left > patience.total:
                raise Rejected("unavailable", f"the server asks for a pause of {left:.0f} s")
            self.stop.wait(left)
        if self.stop.is_set():
            raise Stopped
        self.attempts += 1
        began = time.monotonic()
        try:
            return self._send()
        except (Transient, UserError) as error:
            if self.transport.is_lost(self._server):
                self.transport.tell(f"its server went away: {error}")
                raise Lost from None
            if isinstance(error, UserError):
                raise
            if error.wait:
                gate.pause(error.wait)
            self.transport.tell(f"try {self.attempts} of a request failed: {error}")
            raise
        finally:
            self.latency = time.monotonic() - began

    def _send(self) -> Mapping[str, Any]:
        from openai import APIConnectionError, APIStatusError

        client, scrub = self._client, self.transport.scrub
        endpoint = client.responses if self.request.api == "responses" else client.chat.completions
        try:
            raw = endpoint.with_raw_response.create(**self.request.payload)
            status, text, headers = raw.status_code, raw.text, raw.headers
        except APIStatusError as error:
            status, text, headers = (
                error.status_code,
                error.response.text,
                error.response.headers,
            )
        except APIConnectionError as error:
            raise Transient(scrub(f"{error} {error.__cause__ or ''}")) from None
        body = read_json(text)
        if status < 300 and body is not None and not reports_error(body):
            return body
        fault = Fault(status, self.transport.hide(text), self.request)
        raise classify(fault, headers, self.transport._block) from None


_SDKS: dict[tuple[Any, ...], Any] = {}


def _sdk(url: str, key: str, patience: Patience, inside: bool = False) -> Any:
    """The SDK's client of a server; entries with the same server share its connections.

    `inside`: in the cluster, where a proxy for the way out must not be used.
    """
    facts = (os.getpid(), url, key, patience.read_timeout, patience.connect_timeout)
    if facts not in _SDKS:
        from openai import DefaultHttpxClient, OpenAI, Timeout

        for noisy in ("httpx", "httpx2"):  # a line for each request
            logging.getLogger(noisy).setLevel(logging.WARNING)
        timeout = Timeout(patience.read_timeout, connect=patience.connect_timeout)
        http = DefaultHttpxClient(trust_env=False, timeout=timeout) if inside else None
        _SDKS[facts] = OpenAI(
            api_key=key, base_url=url, max_retries=0, timeout=timeout, http_client=http
        )
    return _SDKS[facts]


def _address(block: Mapping[str, Any]) -> str:
    if not block["base_url"]:
        return OPENAI
    url = os.path.expandvars(block["base_url"])
    if not re.match(r"https?://[^/$]", url) or "$" in url:
        raise UserError(
            f"judges.{block['name']}.base_url: {block['base_url']!r} gives no http(s) address; is "
            "its variable set in the environment?"
        )
    return url
