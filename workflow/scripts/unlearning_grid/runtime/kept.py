"""Parts of a result that outlive the job: a killed job goes on, an edit redoes what it touches.

What a part depends on is the caller's identity and, always, the stage's code and environment and
the content of the model and the policy. It stands in the file's name; files of the same part with
another one are deleted.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unlearning_grid.runtime.job import Job
from unlearning_grid.spec.canonical import digest

log = logging.getLogger(__name__)

LOOK_AT_LEASE = 5.0  # seconds between two looks


def kept_table(job: Job, name: str, identity: Mapping[str, Any], make: Callable[[], Any]) -> Any:
    """The table `name`, made by `make` unless it was already, from the same `identity`."""
    import pandas as pd

    done = _place(job, name, identity, "parquet")
    if done.is_file():
        log.info("%s: kept from an earlier run", name)
        return pd.read_parquet(done)
    table = make()
    job.checkpoint_guard()
    _delete_others(done)
    partial = done.with_name(f".{done.name}")
    table.to_parquet(partial, index=False)
    partial.rename(done)
    return table


Row = dict[str, Any]
Keep = Callable[[int, Row], None]


def kept_rows(
    job: Job,
    name: str,
    identity: Mapping[str, Any],
    keys: Sequence[str],
    make: Callable[[list[int], Keep], None],
) -> list[Row]:
    """Rows (JSON objects) in the order of `keys`; those that are not kept yet are made.

    Each row is on disk as soon as it is made, so that a killed job loses only what it had under
    way. Rows outlive a change of `keys`: added ones are made, and the rest is found.

    Args:
        keys: what each row depends on beside `identity`; equal keys share a row.
        make: is called with the places in `keys` of the missing rows, each key once, and a function
            that takes a place and its row. It is not called when no row is missing.
    Raises RuntimeError when `make` leaves a row out.
    """
    journal = _place(job, name, identity, "jsonl")
    found = _read(journal)
    first = {key: place for place, key in reversed(list(enumerate(keys)))}
    missing = sorted(place for key, place in first.items() if key not in found)
    if found:
        kept = sum(key in found for key in keys)
        log.info("%s: %d of %d rows kept from an earlier run", name, kept, len(keys))
    if missing:
        job.checkpoint_guard()
        _delete_others(journal)
        with _Appending(job, journal) as lines:

            def keep(place: int, row: Row) -> None:
                lines.write({"key": keys[place], "row": row})
                found[keys[place]] = row

            make(missing, keep)
    lost = [place for place in missing if keys[place] not in found]
    if lost:
        raise RuntimeError(f"{name}: {len(lost)} of {len(missing)} rows were not made")
    return [found[key] for key in keys]


class _Appending:
    """A journal that is written line by line, while the lease is held."""

    def __init__(self, job: Job, path: Path) -> None:
        self.job, self.path = job, path
        self.looked = time.monotonic()

    def __enter__(self) -> "_Appending":
        self.handle = open(self.path, "a", encoding="utf-8")
        return self

    def write(self, entry: Mapping[str, Any]) -> None:
        if time.monotonic() - self.looked > LOOK_AT_LEASE:
            self.job.checkpoint_guard()
            self.looked = time.monotonic()
        self.handle.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self.handle.flush()

    def __exit__(self, *_: object) -> None:
        self.handle.close()


def _read(journal: Path) -> dict[str, Row]:
    """Key -> row; a last line that a kill cut short is cut off the file."""
    if not journal.is_file():
        return {}
    content = journal.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(journal, whole)
    entries = [json.loads(line) for line in content[:whole].splitlines()]
    return {entry["key"]: entry["row"] for entry in entries}


def _place(job: Job, name: str, identity: Mapping[str, Any], ending: str) -> Path:
    made_from = [job.content_digest(i) for i in ("policy", "model") if i in job.inputs]
    whole = {
        **identity,
        "model": dict(job.settings["model"]),
        "policy": made_from,
        "code": job.spec["code"],
        "env": job.spec["env"],
    }
    return job.kept / f"{name}-{digest(whole)[:16]}.{ending}"


def _delete_others(path: Path) -> None:
    name = path.stem.rpartition("-")[0]
    for old in path.parent.glob(f"{name}-????????????????{path.suffix}"):
        if old != path:
            old.unlink()
