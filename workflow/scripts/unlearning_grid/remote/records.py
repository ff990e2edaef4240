"""One reply as one line of a file.

    <key, 64 hex> <time, 19 digits, ns> <entry, 8 hex> <+ or -> <crc32, 8 hex> <JSON>

Fixed-width fields come first, so that an index needs no JSON. "+" is a reply that was accepted and
is served again, "-" one that failed.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

# Where the fields stand in a line.
KEY, WHEN, ENTRY, STATE = slice(0, 64), slice(65, 84), slice(85, 93), 94
_CRC, _JSON = slice(96, 104), 105
ACCEPTED = ord("+")


@dataclass(frozen=True)
class Record:
    """One reply. No prompt, no completion under judgement, no secret stands in it.

    Attributes:
        key: of the request and its replicate (requests.request_key).
        judge: name of the `judges` entry that asked.
        prompt: sha256 (hex) of the system text.
        decoding: stated decoding parameters.
        text: the reply's own text.
        failure, detail: why there is no value (judge.base.FAILURES).
        usage: tokens by kind.
        latency: seconds of the last try.
        attempts: tries, the first included.
        time_ns: when it was written, nanoseconds of the epoch.
        entry: 8 hex digits, equal for `judges` entries that would send the same.
    """

    key: str
    judge: str
    model: str
    api: str
    prompt: str
    replicate: int
    text: str | None
    decoding: Mapping[str, Any] = field(default_factory=dict)
    failure: str | None = None
    detail: str | None = None
    finish_reason: str | None = None
    usage: Mapping[str, int | None] = field(default_factory=dict)
    latency: float = 0.0
    attempts: int = 1
    time_ns: int = 0
    entry: str = "0" * 8


_IN_HEAD = ("key", "time_ns", "entry")
_NAMES = frozenset(f.name for f in fields(Record))


def encode(record: Record) -> bytes:
    """The line of a record, its end included."""
    content = {f.name: getattr(record, f.name) for f in fields(record) if f.name not in _IN_HEAD}
    state = b"-" if record.failure else b"+"
    head = b"%s %019d %s %s " % (
        record.key.encode(),
        record.time_ns or time.time_ns(),
        record.entry.encode(),
        state,
    )
    body = json.dumps(content, separators=(",", ":")).encode()  # ASCII, on one line
    return b"%s%08x %s\n" % (head, zlib.crc32(body, zlib.crc32(head)), body)


def is_record(line: bytes) -> bool:
    """Whether a line is a whole record: its checksum fits."""
    try:
        return int(line[_CRC], 16) == zlib.crc32(line[_JSON:], zlib.crc32(line[: _CRC.start]))
    except ValueError:
        return False


def decode(line: bytes) -> Record:
    """The record in a line."""
    content = {k: v for k, v in json.loads(line[_JSON:]).items() if k in _NAMES}
    key, entry = line[KEY].decode(), line[ENTRY].decode()
    return Record(key=key, time_ns=int(line[WHEN]), entry=entry, **content)
