"""Rows of one target from RWKU (Jin et al. 2024, arXiv 2406.10890, CC BY 4.0).

Read from a folder of {config}.jsonl files, which the demo world writes too. data.load also takes
them from the hub: reading there stands in no digest but that of its own rule.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError

_PROBE = frozenset({"query", "answer", "level", "type", "subject"})
_REFUSAL = frozenset({"instruction", "input", "output", "subject", "intro"})

# config -> (split on the hub, columns that every row must have)
_SCHEMA: dict[str, tuple[str, frozenset[str]]] = {
    "forget_target": ("train", frozenset({"target", "intro"})),
    "forget_level1": ("test", _PROBE),
    "forget_level2": ("test", _PROBE),
    "forget_level3": ("test", _PROBE),
    "neighbor_level1": ("test", _PROBE | {"neighbor"}),
    "neighbor_level2": ("test", _PROBE | {"neighbor"}),
    "mia_forget": ("test", frozenset({"text", "subject"})),
    "mia_retain": ("test", frozenset({"text", "subject"})),
    "utility_general": (
        "test",
        frozenset({"task", "question", "choices", "answer", "examples", "subject"}),
    ),
    "utility_reason": ("test", frozenset({"task", "question", "answer", "cot", "subject"})),
    "utility_truthfulness": (
        "test",
        frozenset({"question", "mc1_targets", "mc2_targets", "subject"}),
    ),
    "utility_factuality": ("test", frozenset({"question", "answers", "subject"})),
    "utility_fluency": ("test", frozenset({"instruction", "subject"})),
    "train_original_passage": ("train", frozenset({"text", "subject"})),
    "train_refusal_llama3": ("train", _REFUSAL),
    "train_refusal_phi3": ("train", _REFUSAL),
}

RWKU_CONFIGS: dict[str, str] = {name: split for name, (split, _) in _SCHEMA.items()}
"""RWKU config -> its split on the hub."""

FORGET_LEVELS = ("forget_level1", "forget_level2", "forget_level3")


def subject_column(config_name: str) -> str:
    """Column that names the person; `forget_target` calls it "target"."""
    return "target" if config_name == "forget_target" else "subject"


def read_rows(source: Mapping[str, Any], config_name: str, subject: str) -> list[dict]:
    """Rows of one subject in one RWKU config, in source order, with the original columns.

    Probes get one more, `repeated`: an earlier row of the config, of any subject, has the same
    query. The study drops those.

    `source`: {"kind": "path", "path": folder of {config}.jsonl}.
    Raises UserError: unknown config or kind, absent folder or file, broken line, missing column,
    or a subject without rows (with the nearest names).
    """
    check_config(config_name)
    if source.get("kind") != "path":
        raise UserError(f"data source kind {source.get('kind')!r} is unknown; use 'path' or 'hub'")
    rows = _read_jsonl(Path(source["path"]), config_name)
    where = f"{Path(source['path']) / config_name}.jsonl"
    return select_rows(rows, config_name, subject, where)


def check_config(name: str) -> None:
    """Raise UserError, with the nearest name, unless RWKU has this config."""
    if name not in _SCHEMA:
        hint = _near(name, RWKU_CONFIGS)
        raise UserError(f"RWKU config {name!r} is unknown{hint}; one of {[*RWKU_CONFIGS]}")


def select_rows(rows: Iterable[dict], config_name: str, subject: str, where: str) -> list[dict]:
    """One subject's rows among those of a config, as `read_rows` gives them.

    `where` names the source in errors. Raises UserError: missing column, subject without rows.
    """
    column = subject_column(config_name)
    required = _SCHEMA[config_name][1]
    found, seen, asked = [], set(), set()
    for number, row in enumerate(rows, start=1):
        missing = sorted(required - row.keys())
        if missing:
            raise UserError(
                f"{where}: row {number} lacks column {missing[0]!r} (has {sorted(row)}); "
                "use RWKU's own files with their original columns"
            )
        seen.add(row[column])
        if row[column] == subject:
            found.append({**row, "repeated": row["query"] in asked} if "query" in row else row)
        asked.add(row.get("query"))
    if not found:
        raise UserError(
            f"{where}: no row has {column} {subject!r}{_near(subject, seen)}; the subject must be "
            f"spelled as in RWKU ({len(seen)} subjects in this file)"
        )
    return found


def _near(word: str, known: Iterable[str]) -> str:
    by_fold = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), by_fold, n=3, cutoff=0.5)
    return f" (near: {', '.join(by_fold[name] for name in close)})" if close else ""


def _read_jsonl(folder: Path, config_name: str) -> Iterator[dict]:
    if not folder.is_dir():
        raise UserError(
            f"RWKU folder {folder} does not exist; name the folder of {{config}}.jsonl files"
        )
    path = folder / f"{config_name}.jsonl"
    if not path.is_file():
        raise UserError(
            f"RWKU file {path} does not exist; put that config there as one JSON object a line"
        )
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{path}:{number}: not JSON ({error}); fix this line") from error
            if not isinstance(row, dict):
                raise UserError(f"{path}:{number}: a row must be a JSON object; fix this line")
            yield row


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object a line, UTF-8, key order kept."""
    with path.open("w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


def read_jsonl(path: Path) -> list[dict]:
    """All objects of a file that a stage of ours wrote."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
