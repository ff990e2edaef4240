"""Replies kept for good: append-only files, one for each process that writes.

A line is one record, fixed-width fields first, so that an index needs no JSON:

    <key, 64 hex> <time, 19 digits, ns> <judge, 8 hex> <+ or -> <crc32, 8 hex> <JSON>

"+" is a reply that was accepted and is served again, "-" one that failed, kept for the count only.
Of several accepted records of a key the earliest is served. There are no locks between processes:
nobody writes into another's file, and a line that was cut by a kill fails its checksum and is
skipped. Dropping a judge's records appends a tombstone, `<name>.prune`, which says up to which
length each file is dropped; every reader applies it. docs/decisions/007 has the reasons.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
import socket
import threading
import time
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

SEGMENT, TOMBSTONE = ".records", ".prune"
_CHUNK = 8 << 20  # bytes read at once
# Where the fields stand in a line.
_KEY, _WHEN, _JUDGE, _STATE = slice(0, 64), slice(65, 84), slice(85, 93), 94
_CRC, _JSON = slice(96, 104), 105
_ACCEPTED = ord("+")
_LONGEST = (1 << 24) - 1  # bytes of a line
# An index entry is one integer: time, number of the file, offset, length of the line.
_TIME, _FILE, _OFFSET = 24 + 44 + 24, 24 + 44, 24


@dataclass(frozen=True)
class Record:
    """One reply. No prompt, no completion under judgement, no secret stands in it.

    Attributes:
        key: of the request and its replicate (requests.request_key).
        judge: name of the `judges` entry.
        prompt: sha256 (hex) of the system text.
        decoding: stated decoding parameters.
        text: the reply's own text.
        failure, detail: why there is no value (judge.base.FAILURES).
        usage: tokens by kind.
        latency: seconds of the last try.
        attempts: tries, the first included.
        time_ns: when it was written, nanoseconds of the epoch.
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


@dataclass
class _File:
    """What is known of one file of records."""

    name: str
    number: int
    size: int = 0  # when it was last looked at
    read: int = 0  # up to the end of the last complete line
    skipped: int = 0  # lines that are no records


class Cache:
    """The records of one folder. Threads may share it, and forked processes may go on with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, _File] = {}
        self._names: list[str] = []
        self._index: dict[bytes, int] = {}
        self._tombstones: dict[str, tuple[bytes, dict[str, int]]] = {}  # by name of their files
        self._warned = False
        self._after_fork()
        _CACHES.add(self)

    def _after_fork(self) -> None:
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._handle: int | None = None
        self._torn = False

    # Reading.

    def get(self, keys: Iterable[str]) -> dict[str, Record]:
        """The accepted records of those keys that have one, by key."""
        wanted: dict[str, list[tuple[int, int, str]]] = {}
        with self._reading:
            for key in keys:
                entry = self._index.get(bytes.fromhex(key))
                if entry is not None:
                    name, offset, length = self._place(entry)
                    wanted.setdefault(name, []).append((offset, length, key))
        found = {}
        for name, places in wanted.items():
            for key, line in self._lines(name, sorted(places)):
                if _is_record(line) and line[_KEY] == key.encode():
                    found[key] = _decode(line)
        return found

    def _lines(self, name: str, places: list[tuple[int, int, str]]) -> Iterator[tuple[str, bytes]]:
        try:
            with open(self.folder / name, "rb") as file:
                for offset, length, key in places:
                    file.seek(offset)
                    yield key, file.read(length)
        except FileNotFoundError:  # deleted by hand: its replies are asked for again
            return

    def refresh(self) -> None:
        """Take in what was written since the last look, by whomever."""
        with self._reading:
            sizes, tombstones = self._look()
            for name in tombstones - self._tombstones.keys():
                self._tombstones[name] = self._read_tombstone(name)
                self._forget()  # what lost to a dropped record counts again
            if any(sizes.get(name, 0) < file.read for name, file in self._files.items()):
                self._forget()  # files were deleted or cut by hand
            for name in sorted(sizes):
                if name not in self._files:
                    self._files[name] = _File(name, len(self._names))
                    self._names.append(name)
                if sizes[name] > self._files[name].size:
                    self._take_in(self._files[name], sizes[name])

    def _look(self) -> tuple[dict[str, int], set[str]]:
        """Sizes of the files of records, and names of the tombstones."""
        try:
            entries = list(os.scandir(self.folder))
        except FileNotFoundError:
            return {}, set()
        sizes = {e.name: e.stat().st_size for e in entries if e.name.endswith(SEGMENT)}
        return sizes, {e.name for e in entries if e.name.endswith(TOMBSTONE)}

    def _forget(self) -> None:
        self._files, self._names, self._index = {}, [], {}

    def _take_in(self, file: _File, size: int) -> None:
        drops = self._drops(file.name)
        for offset, line in self._read_lines(file.name, file.read, size):
            if _is_record(line):
                if line[_STATE] == _ACCEPTED and offset >= drops.get(line[_JUDGE], 0):
                    self._add(line, file, offset)
            elif line:  # an empty line only closes one that was cut
                file.skipped += 1
            file.read = offset + len(line) + 1
        file.size = size

    def _add(self, line: bytes, file: _File, offset: int) -> None:
        key = bytes.fromhex(line[_KEY].decode())
        entry = int(line[_WHEN]) << _TIME | file.number << _FILE | offset << _OFFSET | len(line)
        old = self._index.get(key)
        if old is None or self._order(entry) < self._order(old):
            self._index[key] = entry

    def _order(self, entry: int) -> tuple[int, str, int]:
        name, offset, _ = self._place(entry)
        return entry >> _TIME, name, offset

    def _place(self, entry: int) -> tuple[str, int, int]:
        """(name of the file, offset, length) of an index entry."""
        name = self._names[entry >> _FILE & (1 << 24) - 1]
        return name, entry >> _OFFSET & (1 << 44) - 1, entry & _LONGEST

    def _read_lines(self, name: str, offset: int, end: int) -> Iterator[tuple[int, bytes]]:
        """(offset, line without its end) of every complete line between two places."""
        try:
            file = open(self.folder / name, "rb")  # noqa: SIM115
        except FileNotFoundError:
            return
        with file:
            file.seek(offset)
            rest = b""
            at = offset
            while block := file.read(min(_CHUNK, end - at)):
                at += len(block)
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    yield offset, line
                    offset += len(line) + 1

    # Writing.

    def append(self, record: Record) -> bool:
        """Keep a record; False, with one warning, when the disk does not take it."""
        line = _encode(record)
        if len(line) > _LONGEST:
            return False
        with self._writing:
            try:
                if self._handle is None:
                    self._handle = self._new_file()
                data = b"\n" + line if self._torn else line
                self._torn = True
                if os.write(self._handle, data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
                self._torn = False
                return True
            except OSError as error:
                self._warn(error)
                return False

    def sync(self) -> None:
        """Ask the disk to keep what was written."""
        with self._writing:
            try:
                if self._handle is not None:
                    os.fsync(self._handle)
            except OSError as error:
                self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            log.warning(
                "judge cache %s: a reply cannot be kept (%s); this run goes on, the next one asks "
                "again",
                self.folder,
                error,
            )
        self._warned = True

    def _new_file(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND
        return os.open(self.folder / (_unique_name() + SEGMENT), flags, 0o644)

    # Looking after it.

    def records(self) -> Iterator[tuple[Record, str]]:
        """Every record and what has become of it: served, failed, duplicate or pruned."""
        self.refresh()
        for name, file in sorted(self._files.items()):
            drops = self._drops(name)
            for offset, line in self._read_lines(name, 0, file.read):
                if not _is_record(line):
                    continue
                if offset < drops.get(line[_JUDGE], 0):
                    state = "pruned"
                elif line[_STATE] != _ACCEPTED:
                    state = "failed"
                else:
                    entry = self._index[bytes.fromhex(line[_KEY].decode())]
                    served = self._place(entry)[:2] == (name, offset)
                    state = "served" if served else "duplicate"
                yield _decode(line), state

    def prune(self, judge: str) -> int:
        """Drop all records of a judge that are there now; how many they were.

        Writers may go on meanwhile: what they add later stays. Raises OSError when the tombstone
        cannot be written.
        """
        dropped = sum(r.judge == judge and state != "pruned" for r, state in self.records())
        lengths = {name: file.read for name, file in self._files.items()}
        text = json.dumps({"judge": judge, "lengths": lengths})
        path = self.folder / (_unique_name() + TOMBSTONE)
        temporary = path.with_suffix(".tmp")
        with open(temporary, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        return dropped

    def _drops(self, name: str) -> dict[bytes, int]:
        """Judge (as in a line) -> length up to which its records in a file are dropped."""
        drops: dict[bytes, int] = {}
        for judge, lengths in self._tombstones.values():
            drops[judge] = max(drops.get(judge, 0), lengths.get(name, 0))
        return drops

    def _read_tombstone(self, name: str) -> tuple[bytes, dict[str, int]]:
        try:
            content = json.loads((self.folder / name).read_text(encoding="ascii"))
            return _tag(content["judge"]), content["lengths"]
        except (ValueError, KeyError, FileNotFoundError):
            log.warning("judge cache: %s is no tombstone; it is left out", name)
            return b"", {}

    @property
    def size(self) -> dict[str, int]:
        """Files, bytes, and lines that were skipped because they are no records."""
        files = self._files.values()
        return {
            "files": len(files),
            "bytes": sum(file.size for file in files),
            "skipped": sum(file.skipped + (file.size > file.read) for file in files),
        }


def open_cache(folder: Path) -> Cache:
    """The one cache of a folder in this process, so that its index is built once."""
    folder = folder.absolute()
    return _OPEN.get(folder) or _OPEN.setdefault(folder, Cache(folder))


def _tag(judge: str) -> bytes:
    return hashlib.sha256(judge.encode()).hexdigest()[:8].encode()


def _unique_name() -> str:
    host = re.sub(r"[^\w.-]", "_", socket.gethostname(), flags=re.ASCII)
    return f"{host}-{os.getpid()}-{secrets.token_hex(6)}"


def _encode(record: Record) -> bytes:
    content = {f.name: getattr(record, f.name) for f in fields(record) if f.name not in _IN_HEAD}
    state = b"-" if record.failure else b"+"
    head = b"%s %019d %s %s " % (
        record.key.encode(),
        record.time_ns or time.time_ns(),
        _tag(record.judge),
        state,
    )
    body = json.dumps(content, separators=(",", ":")).encode()  # ASCII, on one line
    return b"%s%08x %s\n" % (head, zlib.crc32(body, zlib.crc32(head)), body)


_IN_HEAD = ("key", "time_ns")
_NAMES = frozenset(f.name for f in fields(Record))


def _is_record(line: bytes) -> bool:
    try:
        return int(line[_CRC], 16) == zlib.crc32(line[_JSON:], zlib.crc32(line[: _CRC.start]))
    except ValueError:
        return False


def _decode(line: bytes) -> Record:
    content = {k: v for k, v in json.loads(line[_JSON:]).items() if k in _NAMES}
    return Record(key=line[_KEY].decode(), time_ns=int(line[_WHEN]), **content)


_OPEN: dict[Path, Cache] = {}
_CACHES: weakref.WeakSet[Cache] = weakref.WeakSet()


def _after_fork() -> None:
    # Locks may be held by a thread that does not exist here, and the file is the parent's.
    for cache in _CACHES:
        cache._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
