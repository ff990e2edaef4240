"""Asking a model many things: each question once, what is known from the cache, the rest at once.

Outside the code digests: it decides when something is asked, never what or how a reply is read.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unlearning_grid.remote.cache import open_cache
from unlearning_grid.remote.outage import Pending
from unlearning_grid.remote.quotes import cut
from unlearning_grid.remote.records import Record
from unlearning_grid.remote.requests import (
    InvalidReply,
    Parse,
    Reading,
    Request,
    decoding,
    read,
    request_key,
)
from unlearning_grid.remote.transport import Patience, Stopped, Transport
from unlearning_grid.runtime.job import Interrupted
from unlearning_grid.runtime.meter import METER
from unlearning_grid.spec.canonical import digest

log = logging.getLogger(__name__)

ASKED_TWICE = ("refused", "truncated", "invalid")
"""Failures of a reply that a second try in the same run may cure."""

REPORT_EVERY = 20.0  # seconds
LOOK_EVERY = 0.5  # seconds between looks at whether the job was asked to stop
DETAILS = 5  # failures of a batch whose details go to the log


@dataclass(frozen=True)
class Reply:
    """What came of one request.

    Attributes:
        key: of the request in the cache.
        value: what `parse` made of the text; None when there is none.
        failure, detail: why there is none (judge.base.FAILURES).
        cached: the reply was there already.
    """

    key: str
    value: Any = None
    failure: str | None = None
    detail: str | None = None
    cached: bool = False


class Client:
    """Asks the model of one `judges` entry.

    `counts` adds up over all batches: asked (distinct requests), cached, sent, retried, failures by
    type, and tokens (input_tokens, output_tokens, reasoning_tokens, cached_tokens).
    `on_reply` is called with replies that came and that are wanted, of the batch that is being
    asked; what it does must be quick.
    """

    def __init__(
        self,
        block: Mapping[str, Any],
        requests_at_once: int = 16,
        cache: Path | None = None,
        patience: Patience | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
    ) -> None:
        self.block = block
        self.requests_at_once = requests_at_once
        self.counts: Counter[str] = Counter()
        self.stop_requested = stop_requested
        self.on_reply: Callable[[int, int], None] = lambda _done, _total: None
        self.cache = open_cache(cache) if cache else None
        self.transport = Transport(block, patience)
        self._turn = threading.Lock()  # one batch at a time, or the bound would not hold

    def ask(self, requests: Sequence[Request], parse: Parse, replicate: int = 0) -> list[Reply]:
        """The replies, in the order of `requests`; equal requests are asked once.

        What `parse` accepts is kept and served from then on; what failed is asked again by the next
        run. Raises UserError for what is wrong with the configuration; replies that came before are
        kept then, as they are when the caller is interrupted.
        """
        with self._turn:
            keys = [request_key(request, replicate) for request in requests]
            distinct = dict(zip(keys, requests, strict=True))
            found = self._known(list(distinct), parse)
            missing = {key: r for key, r in distinct.items() if key not in found}
            failures = self.cache.failures(missing) if self.cache else {}
            pending = Pending(missing, failures, self.transport.patience.outage)
            batch = _Batch(self, parse, replicate, pending, len(found))
            try:
                found |= batch.run(len(missing))
            finally:
                batch.close(len(requests))
            return [found[key] for key in keys]

    def _known(self, keys: list[str], parse: Parse) -> dict[str, Reply]:
        if self.cache is None or not keys:
            return {}
        self.cache.refresh()
        known: dict[str, Reply] = {}
        first = self.cache.get(keys)
        for record in first.values():
            _accept(known, record, parse)
        # Taken by an older reader only: of those that were asked for since, the earliest counts.
        for records in self.cache.later(first.keys() - known.keys()).values():
            for record in records:
                _accept(known, record, parse)
        return known


def _accept(known: dict[str, Reply], record: Record, parse: Parse) -> None:
    """Add a record's reply where the key has none and the reader takes it."""
    if record.key not in known:
        with suppress(InvalidReply):
            known[record.key] = Reply(record.key, parse(record.text or ""), cached=True)


def _metered(reading: Reading) -> dict[str, int]:
    """What one sent request adds to the meter; `unmetered`: a reply came without tokens named."""
    tokens = {f"{kind}_tokens": number or 0 for kind, number in reading.usage.items()}
    silent = reading.failure != "unavailable" and not reading.usage.get("input")
    gone = reading.failure == "unavailable"
    return {"sent": 1, "unmetered": int(silent), "unavailable": int(gone), **tokens}


def _entry(block: Mapping[str, Any], request: Request) -> str:
    """Equal for entries of `judges` that would send the same about the same text."""
    facts = {name: block[name] for name in ("api", "base_url", "model")}
    return digest({**facts, "decoding": decoding(block), "prompt": request.prompt})[:8]


class _Batch:
    """The requests of one `ask` that have to be sent.

    Threads send; the caller's thread waits, tells how far it is, and can be interrupted at any
    moment: it never joins a thread that may be waiting for a server.
    """

    def __init__(
        self, client: Client, parse: Parse, replicate: int, pending: Pending, cached: int
    ) -> None:
        self.client = client
        self.parse = parse
        self.replicate = replicate
        self.counts: Counter[str] = Counter(cached=cached, asked=cached)
        self._pending = pending
        self._results: queue.SimpleQueue[tuple[str, Reply] | BaseException] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._told = 0
        self._began = time.monotonic()

    def run(self, number: int) -> dict[str, Reply]:
        """Send all that are pending, so many; the replies by key."""
        if not number:
            return {}
        self.client.transport.open()
        self.counts["asked"] += number
        workers = min(number, self.client.requests_at_once)
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        found: dict[str, Reply] = {}
        try:
            for thread in threads:
                thread.start()
            reported = self._began
            while len(found) < number:
                self.client.on_reply(len(found), number)
                self.client.transport.want()
                if self.client.stop_requested():
                    raise Interrupted(f"{len(found)} of {number} replies came and are kept")
                try:
                    due = reported + REPORT_EVERY - time.monotonic()
                    result = self._results.get(timeout=max(0.001, min(LOOK_EVERY, due)))
                except queue.Empty:
                    if due <= LOOK_EVERY:
                        self._report(found, number)
                        reported = time.monotonic()
                    continue
                if isinstance(result, BaseException):
                    raise result
                found[result[0]] = result[1]
        finally:
            self._stop.set()  # those that wait for a server end on their own, unattended
        return found

    def close(self, rows: int) -> None:
        """Count, tell, and ask the disk to keep what came."""
        counts, client = self.counts, self.client
        if client.cache is not None and counts["sent"]:
            client.cache.sync()
        with self._lock:
            failed = Counter({k[7:]: n for k, n in counts.items() if k.startswith("failed_")})
            client.counts.update(counts)
        METER.add(client.block["name"], {name: counts[name] for name in ("asked", "cached")})
        log.info(
            "judge %s: %d replies wanted, %d distinct, %d from the cache; %d failed%s; sent %d "
            "requests in %d tries, %d tokens in (%d cached), %d out (%d reasoning), %.1f s",
            client.block["name"],
            rows,
            counts["asked"],
            counts["cached"],
            failed.total(),
            f" ({', '.join(f'{k} {n}' for k, n in sorted(failed.items()))})" if failed else "",
            counts["sent"],
            counts["tries"],
            counts["input_tokens"],
            counts["cached_tokens"],
            counts["output_tokens"],
            counts["reasoning_tokens"],
            time.monotonic() - self._began,
        )

    def _report(self, found: Mapping[str, Reply], total: int) -> None:
        failed = sum(reply.failure is not None for reply in found.values())
        log.info(
            "judge %s: %d of %d replies, %d failed, %.1f/s",
            self.client.block["name"],
            len(found),
            total,
            failed,
            len(found) / (time.monotonic() - self._began),
        )

    # In the threads.

    def _work(self) -> None:
        while not self._stop.is_set():
            taken = self._pending.take()
            if taken is None:
                return
            try:
                reply = self._answer(*taken)
            except Stopped:
                return
            except BaseException as error:
                self._results.put(error)
                return
            if reply is not None:
                self._results.put((reply.key, reply))

    def _answer(self, key: str, request: Request, probe: bool) -> Reply | None:
        """One request, a second time where that may help; None when it is put aside."""
        if self._pending.down:
            reply = Reply(key, None, "unavailable", "not asked: the server answers no request")
        else:
            reply, again = self._try(key, request, probe)
            if again and not self._stop.is_set():
                with self._lock:
                    self.counts["retried"] += 1
                reply, _ = self._try(key, request, probe)
            if reply.failure == "unavailable" and self._pending.failed(key, request, probe):
                return None
        if reply.failure:
            self._count_failure(key, reply)
        return reply

    def _count_failure(self, key: str, reply: Reply) -> None:
        with self._lock:
            self.counts[f"failed_{reply.failure}"] += 1
            METER.add(self.client.block["name"], {"failed": 1})
            self._told += 1
            told = self._told
        if told <= DETAILS:
            log.warning(
                "judge %s: no reply to request %s: %s, %s%s",
                self.client.block["name"],
                key[:12],
                reply.failure,
                reply.detail,
                "; further ones are counted only" if told == DETAILS else "",
            )

    def _try(self, key: str, request: Request, probe: bool) -> tuple[Reply, bool]:
        """(reply, whether asking again may help). What came is kept before it is handed on."""
        sent = self.client.transport.send(request, self._stop, probe)
        value = None
        if sent.body is None:
            reading = Reading(None, sent.failure, sent.detail)
        else:
            reading = read(sent.body, self.client.block)
            if reading.failure is None:
                try:
                    value = self.parse(reading.text or "")
                except InvalidReply as error:
                    ended, usage = reading.finish_reason, reading.usage
                    reading = Reading(reading.text, "invalid", str(error), ended, usage)
        if reading.failure != "unavailable":
            self._pending.replied()
        if reading.detail:
            detail = self.client.transport.scrub(cut(reading.detail, request))
            reading = replace(reading, detail=detail)
        self._keep(key, request, reading, sent.attempts, sent.latency)
        reply = Reply(key, value, reading.failure, reading.detail)
        return reply, sent.body is not None and reading.failure in ASKED_TWICE

    def _keep(
        self, key: str, request: Request, reading: Reading, attempts: int, latency: float
    ) -> None:
        block = self.client.block
        with self._lock:
            self.counts["sent"] += 1
            self.counts["tries"] += attempts
            for kind, tokens in reading.usage.items():
                self.counts[f"{kind}_tokens"] += tokens or 0
        METER.add(block["name"], _metered(reading))
        if self.client.cache is None:
            return
        self.client.cache.append(
            Record(
                key=key,
                judge=block["name"],
                model=block["model"],
                api=request.api,
                prompt=request.prompt,
                decoding=decoding(block),
                replicate=self.replicate,
                text=reading.text,
                failure=reading.failure,
                detail=reading.detail,
                finish_reason=reading.finish_reason,
                usage=reading.usage,
                latency=round(latency, 3),
                attempts=attempts,
                entry=_entry(block, request),
            )
        )
