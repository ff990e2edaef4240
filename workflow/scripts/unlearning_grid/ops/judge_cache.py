"""Looking into the judge cache: what lies there, as a parquet file, and dropping a judge's part."""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.ops.columns import columns
from unlearning_grid.paths import JUDGE_CACHE
from unlearning_grid.remote.cache import Cache
from unlearning_grid.remote.records import Record

_ROWS = 50_000  # records to a row group
_TOKENS = ("input", "output", "reasoning", "cached")


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `judge-cache` with its own three."""
    parser = commands.add_parser(
        "judge-cache",
        help="what judges and teachers replied: stats, export, prune",
        description="Replies of judges and teachers lie below results/judge_cache and are served "
        "again instead of asking. docs/judges.md says what is kept.",
    )
    actions = parser.add_subparsers(dest="action", required=True)
    stats = actions.add_parser(
        "stats", parents=[common], help="records, failures and tokens by judge, model and prompt"
    )
    stats.set_defaults(run=lambda _: print(statistics(JUDGE_CACHE)))
    out = actions.add_parser(
        "export", parents=[common], help="write every record to a parquet file, one row each"
    )
    out.add_argument("file", type=Path, help="file to write, relative to --directory")
    out.set_defaults(run=lambda a: print(f"{export(JUDGE_CACHE, a.file)} records in {a.file}"))
    drop = actions.add_parser(
        "prune",
        parents=[common],
        help="never serve what a judge was answered so far; may be run while jobs write",
        description="From now on nothing that this entry was answered so far is served, also where "
        "another entry had asked the same: the next run asks again. Finished results stay as they "
        "are. No disk space is freed.",
    )
    drop.add_argument("judge", help="name of the `judges` entry, audit for example")
    drop.set_defaults(run=lambda a: print(prune(JUDGE_CACHE, a.judge)))


def statistics(folder: Path) -> str:
    """A table of what the cache holds. Raises UserError when there is none."""
    cache = _open(folder)
    groups: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    total = 0
    for record, state in cache.records():
        total += 1
        counts = groups[record.judge, record.model, record.prompt[:8]]
        counts[state] += 1
        if record.failure:
            counts[record.failure] += 1
        for kind in _TOKENS:
            counts[f"{kind} tokens"] += record.usage.get(kind) or 0
    size = cache.size
    head = (
        f"{total} records in {size['files']} file(s), {size['bytes'] / 2**20:.1f} MiB; "
        f"{size['skipped']} damaged line(s) skipped"
    )
    shown = ["served", "failed", "duplicate", "pruned", *(f"{kind} tokens" for kind in _TOKENS)]
    rows = [["judge", "model", "prompt", *shown, "failures"]]
    for group, counts in sorted(groups.items()):
        failures = [f"{name} {counts[name]}" for name in _failures(counts)]
        rows.append([*group, *(str(counts[c]) for c in shown), ", ".join(failures)])
    return "\n".join([head, "", *columns(rows, left=len(rows[0]))])


def export(folder: Path, target: Path) -> int:
    """Write every record to a parquet file; how many. Raises UserError when there is no cache.

    Columns: those of remote.records.Record, tokens by kind, and `state` (served, failed, duplicate,
    pruned).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"replicate": pa.int64(), "attempts": pa.int64(), "latency": pa.float64()}
    kinds |= {"time": pa.timestamp("ns", tz="UTC")}
    kinds |= {f"{kind}_tokens": pa.int64() for kind in _TOKENS}
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in _COLUMNS])
    written = 0
    with pq.ParquetWriter(target, schema) as writer:
        for rows in _batches(_open(folder)):
            writer.write_table(pa.Table.from_pylist(rows, schema))
            written += len(rows)
    return written


def prune(folder: Path, judge: str) -> str:
    """Drop what a judge was answered; a sentence about it. Raises UserError when nothing was."""
    cache = _open(folder)
    known = {record.judge for record, _ in cache.records()}
    if judge not in known:
        raise UserError(
            f"no record of judge {judge} in {folder}; there are {sorted(known)}. An entry that "
            "asks what another had asked has none of its own: prune the other"
        )
    return f"{cache.prune(judge)} records for judge {judge} dropped; the next run asks again"


_COLUMNS = (
    "key",
    "state",
    "judge",
    "model",
    "api",
    "prompt",
    "decoding",
    "replicate",
    "text",
    "failure",
    "detail",
    "finish_reason",
    *(f"{kind}_tokens" for kind in _TOKENS),
    "latency",
    "attempts",
    "time",
)


def _batches(cache: Cache) -> Iterator[list[dict[str, Any]]]:
    rows = []
    for record, state in cache.records():
        rows.append(_row(record, state))
        if len(rows) == _ROWS:
            yield rows
            rows = []
    yield rows


def _row(record: Record, state: str) -> dict[str, Any]:
    row = {name: getattr(record, name, None) for name in _COLUMNS}
    row |= {f"{kind}_tokens": record.usage.get(kind) for kind in _TOKENS}
    return row | {
        "state": state,
        "decoding": json.dumps(record.decoding, sort_keys=True),
        "text": _storable(record.text),
        "detail": _storable(record.detail),
        "time": datetime.fromtimestamp(record.time_ns / 1e9, UTC),
    }


def _storable(text: str | None) -> str | None:
    """Text without halves of surrogate pairs, which parquet cannot hold."""
    return None if text is None else text.encode("utf-8", "replace").decode()


def _failures(counts: Counter[str]) -> list[str]:
    from unlearning_grid.judge.base import FAILURES

    return [name for name in FAILURES if counts[name]]


def _open(folder: Path) -> Cache:
    if not folder.is_dir():
        raise UserError(f"no judge cache at {folder}; --directory names the one with results/")
    return Cache(folder)
