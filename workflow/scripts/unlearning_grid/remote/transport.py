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
from dataclasses import dataclass, replace
from typing import Any

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

log = logging.getLogger(__name__)

TELL_EVERY = 20.0  # seconds
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
    """

    attempts: int = 10
    total: float = 900.0
    first_wait: float = 1.0
    longest_wait: float = 60.0
    read_timeout: float = 180.0
    connect_timeout: float = 20.0
    probe: int = 3
    outage: int = 4

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
        self._client: Any = None
        self._pid = 0
        self._key = ""
        self._told = -math.inf

    def open(self) -> None:
        """Read the key and the server's address. Call before the first send of a batch.

        Raises UserError when the environment lacks either.
        """
        if self._client is not None and self._pid == os.getpid():
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
        self._key, self._pid = key, os.getpid()

    def send(self, request: Request, stop: threading.Event, probe: bool = False) -> Sent:
        """Send until there is a reply or patience ends; then the failure is `unavailable`.

        A probe ends after few tries. Raises UserError for what is wrong with the configuration,
        Stopped once `stop` is set.
        """
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
        task = _Task(self, request, stop)
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
            body, failure, detail = retrying(task.attempt), None, None
        except Transient as error:
            if stop.is_set():
                raise Stopped from None
            body, failure, detail = None, "unavailable", str(error)
        except Rejected as error:
            body, failure, detail = None, error.failure, str(error)
        return Sent(body, failure, detail, task.attempts, task.latency)

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
        # A short one is a word for a server that wants none.
        return text.replace(self._key, "***") if len(self._key) >= 8 else text

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
        except Transient as error:
            if error.wait:
                gate.pause(error.wait)
            self.transport.tell(f"try {self.attempts} of a request failed: {error}")
            raise
        finally:
            self.latency = time.monotonic() - began

    def _send(self) -> Mapping[str, Any]:
        from openai import APIConnectionError, APIStatusError

        client, scrub = self.transport._client, self.transport.scrub
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


def _sdk(url: str, key: str, patience: Patience) -> Any:
    """The SDK's client of a server; entries with the same server share its connections."""
    facts = (os.getpid(), url, key, patience.read_timeout, patience.connect_timeout)
    if facts not in _SDKS:
        from openai import OpenAI, Timeout

        for noisy in ("httpx", "httpx2"):  # a line for each request
            logging.getLogger(noisy).setLevel(logging.WARNING)
        timeout = Timeout(patience.read_timeout, connect=patience.connect_timeout)
        _SDKS[facts] = OpenAI(api_key=key, base_url=url, max_retries=0, timeout=timeout)
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
