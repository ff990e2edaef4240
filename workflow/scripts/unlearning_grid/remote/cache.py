"""Replies kept for good: append-only files, one for each process that writes, a record a line.

Of several accepted records of a key the earliest comes first; the others are there for a reader
that does not take it. Failed ones are kept for the count, and for what to ask last. There are no
locks between processes: nobody writes into another's file, and a line that was cut by a kill fails
its checksum and is skipped. Dropping what an entry was answered adds a tombstone, `<name>.prune`,
which says up to which length each file is dropped; every reader applies it. docs/decisions/007 has
the reasons.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import secrets
import socket
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from unlearning_grid.remote.records import (
    ACCEPTED,
    ENTRY,
    KEY,
    STATE,
    WHEN,
    Record,
    decode,
    encode,
    is_record,
)

log = logging.getLogger(__name__)

SEGMENT, TOMBSTONE = ".records", ".prune"
_CHUNK = 8 << 20  # bytes read at once
_LONGEST = (1 << 24) - 1  # bytes of a line
# An index entry is one integer: time, number of the file, offset, length of the line.
_TIME, _FILE, _OFFSET = 24 + 44 + 24, 24 + 44, 24


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
        self._later: dict[bytes, list[int]] = {}  # accepted records that are not the earliest
        self._failed: Counter[bytes] = Counter()
        self._tombstones: dict[str, tuple[list[bytes], dict[str, int]]] = {}  # by file
        self._warned = False
        self._after_fork()
        _CACHES.add(self)

    def _after_fork(self) -> None:
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._handle: int | None = None
        self._torn = False

    # Reading.

    def get(self, keys: Iterable[str]) -> dict[str, Record]:
        """The earliest accepted record of each key that has one, by key."""
        with self._reading:
            entries = ((key, self._index.get(bytes.fromhex(key))) for key in keys)
            places = [(key, *self._place(entry)) for key, entry in entries if entry is not None]
        return {record.key: record for record in self._read(places).values()}

    def later(self, keys: Iterable[str]) -> dict[str, list[Record]]:
        """The accepted records after the earliest, in order, of keys that have several."""
        with self._reading:
            places = [
                (key, *self._place(entry))
                for key in keys
                for entry in self._later.get(bytes.fromhex(key), ())
            ]
        read = self._read(places)
        found: dict[str, list[Record]] = {}
        for key, name, offset, _ in places:
            if (name, offset) in read:
                found.setdefault(key, []).append(read[name, offset])
        return found

    def failures(self, keys: Iterable[str]) -> dict[str, int]:
        """How many failed records each of these keys has."""
        with self._reading:
            return {key: self._failed[bytes.fromhex(key)] for key in keys}

    def _read(self, places: list[tuple[str, str, int, int]]) -> dict[tuple[str, int], Record]:
        """The records of (key, file, offset, length), by file and offset."""
        wanted: dict[str, list[tuple[int, int, str]]] = {}
        for key, name, offset, length in places:
            wanted.setdefault(name, []).append((offset, length, key))
        found = {}
        for name, lines in wanted.items():
            for key, offset, line in self._lines(name, sorted(lines)):
                if is_record(line) and line[KEY] == key.encode():
                    found[name, offset] = decode(line)
        return found

    def _lines(
        self, name: str, places: list[tuple[int, int, str]]
    ) -> Iterator[tuple[str, int, bytes]]:
        try:
            with open(self.folder / name, "rb") as file:
                for offset, length, key in places:
                    file.seek(offset)
                    yield key, offset, file.read(length)
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
        self._later, self._failed = {}, Counter()

    def _take_in(self, file: _File, size: int) -> None:
        drops = self._drops(file.name)
        for offset, line in self._read_lines(file.name, file.read, size):
            if is_record(line):
                if offset >= drops.get(line[ENTRY], 0):
                    self._add(line, file, offset)
            elif line:  # an empty line only closes one that was cut
                file.skipped += 1
            file.read = offset + len(line) + 1
        file.size = size

    def _add(self, line: bytes, file: _File, offset: int) -> None:
        key = bytes.fromhex(line[KEY].decode())
        if line[STATE] != ACCEPTED:
            self._failed[key] += 1
            return
        entry = int(line[WHEN]) << _TIME | file.number << _FILE | offset << _OFFSET | len(line)
        old = self._index.setdefault(key, entry)
        if old != entry:  # rare: two asked at the same time, or a reader did not take the first
            inorder = sorted([old, entry, *self._later.get(key, ())], key=self._order)
            self._index[key], *self._later[key] = inorder

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
        line = encode(record)
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
        """Every record and what has become of it: served, failed, duplicate or pruned.

        A reader that does not take the served one of a key is given its duplicates.
        """
        self.refresh()
        for name, file in sorted(self._files.items()):
            drops = self._drops(name)
            for offset, line in self._read_lines(name, 0, file.read):
                if not is_record(line):
                    continue
                if offset < drops.get(line[ENTRY], 0):
                    state = "pruned"
                elif line[STATE] != ACCEPTED:
                    state = "failed"
                else:
                    entry = self._index[bytes.fromhex(line[KEY].decode())]
                    served = self._place(entry)[:2] == (name, offset)
                    state = "served" if served else "duplicate"
                yield decode(line), state

    def prune(self, judge: str) -> int:
        """Drop all that an entry of `judges` was answered so far; how many records that is.

        Records of other entries that would send the same are dropped with its own: it was answered
        from them too. Writers may go on meanwhile: what they add later stays. Raises OSError when
        the tombstone cannot be written.
        """
        entries: set[str] = set()
        alive: Counter[str] = Counter()
        for record, state in self.records():
            alive[record.entry] += state != "pruned"
            if record.judge == judge:
                entries.add(record.entry)
        lengths = {name: file.read for name, file in self._files.items()}
        text = json.dumps({"judge": judge, "entries": sorted(entries), "lengths": lengths})
        path = self.folder / (_unique_name() + TOMBSTONE)
        temporary = path.with_suffix(".tmp")
        with open(temporary, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        return sum(alive[entry] for entry in entries)

    def _drops(self, name: str) -> dict[bytes, int]:
        """Entry (as in a line) -> length up to which its records in a file are dropped."""
        drops: dict[bytes, int] = {}
        for entries, lengths in self._tombstones.values():
            for entry in entries:
                drops[entry] = max(drops.get(entry, 0), lengths.get(name, 0))
        return drops

    def _read_tombstone(self, name: str) -> tuple[list[bytes], dict[str, int]]:
        try:
            content = json.loads((self.folder / name).read_text(encoding="ascii"))
            return [entry.encode() for entry in content["entries"]], content["lengths"]
        except (ValueError, KeyError, FileNotFoundError):
            log.warning("judge cache: %s is no tombstone; it is left out", name)
            return [], {}

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


def _unique_name() -> str:
    host = re.sub(r"[^\w.-]", "_", socket.gethostname(), flags=re.ASCII)
    return f"{host}-{os.getpid()}-{secrets.token_hex(6)}"


_OPEN: dict[Path, Cache] = {}
_CACHES: weakref.WeakSet[Cache] = weakref.WeakSet()


def _after_fork() -> None:
    # Locks may be held by a thread that does not exist here, and the file is the parent's.
    for cache in _CACHES:
        cache._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
