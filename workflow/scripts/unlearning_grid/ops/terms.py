"""The report on forbidden terms: what they see and miss in RWKU's rows."""

import argparse
import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unlearning_grid.config import Config, load_file
from unlearning_grid.data.matching import CONVENTIONS
from unlearning_grid.data.rwku import read_rows
from unlearning_grid.errors import UserError
from unlearning_grid.ops.columns import columns
from unlearning_grid.rewards.term_report import ORDINARY, Target, TextSet, collect, totals

Tables = Mapping[str, Sequence[Mapping[str, Any]]]


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `terms`."""
    parser = commands.add_parser(
        "terms", parents=[common], help="what the forbidden terms see and what they miss"
    )
    parser.add_argument("--rows", type=Path, help="folder of RWKU's {config}.jsonl files")
    parser.add_argument("--output", type=Path, help="folder for the tables as CSV")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    print(report(load_file(arguments.config), arguments.rows, arguments.output))


def targets_of(config: Config) -> list[Target]:
    """Names and terms of the grid's targets."""
    known, terms = config.targets, config.terms
    return [
        Target(slug, known[slug]["subject"], known[slug]["aliases"], **terms[slug])
        for slug in config["grid"]["targets"]
    ]


def rows_folder(config: Config, given: Path | None) -> Path | None:
    """Where RWKU's {config}.jsonl files are: the given folder, else the configuration's."""
    if given is None and config["data"]["source"] == "path":
        return config.file(config["data"]["path"])
    return given


class Reader:
    """Reads texts from a folder of rows and keeps what was out of reach."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.missing: dict[str, str] = {}

    def __call__(self, kind: TextSet, subject: str) -> list[str]:
        """Texts of a set for a subject; [] when they cannot be read."""
        if self.folder is None:
            self.missing[kind.name] = "no folder of rows; give --rows"
            return []
        if not (self.folder / f"{kind.config}.jsonl").is_file():
            self.missing[kind.name] = f"{self.folder / kind.config}.jsonl is not there"
            return []
        try:
            rows = read_rows({"kind": "path", "path": self.folder}, kind.config, subject)
        except UserError as error:
            self.missing[f"{kind.name} of {subject}"] = str(error)
            return []
        return [str(row[kind.column]) for row in rows]


def report(config: Config, rows: Path | None, output: Path | None) -> str:
    """The report as text; with `output`, its tables as CSV there."""
    reader = Reader(rows_folder(config, rows))
    tables = collect(targets_of(config), reader)
    text = summary(tables, reader.missing)
    if output:
        output.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            _write(output / f"terms_{name}.csv", table)
        text += f"\n\nTables: {output}/terms_*.csv"
    return text


def summary(tables: Tables, missing: Mapping[str, str]) -> str:
    """What a reader wants to know first."""
    parts = [_lists(tables), _blind_spots(tables["sets"]), _ordinary(tables["hits"])]
    parts += [_folded_only(tables["hits"]), _flawed(tables["terms"]), _names(tables["names"])]
    if missing:
        parts.append("Missing:\n" + "\n".join(f"  {k}: {why}" for k, why in missing.items()))
    return "\n\n".join(part for part in parts if part)


def _lists(tables: Tables) -> str:
    head = ["target", "hard", "soft", "not in ASCII", "edge punctuation", "nested"]
    rows = [[*head, "names that no term covers (paper)"]]
    for target in dict.fromkeys(row["target"] for row in tables["terms"]):
        terms = [row for row in tables["terms"] if row["target"] == target]
        names = [row for row in tables["names"] if row["target"] == target]
        flags = ("never_in_ascii", "edge_punctuation", "nested_in")
        counts = [sum(row["division"] == kind for row in terms) for kind in ("hard", "soft")]
        counts += [sum(bool(row[flag]) for row in terms) for flag in flags]
        uncovered = f"{sum(not row['paper'] for row in names)} of {len(names)}"
        rows.append([target, *map(str, counts), uncovered])
    return "\n".join(["Forbidden terms", *columns(rows, last=True)])


def _blind_spots(sets: Sequence[Mapping[str, Any]]) -> str:
    if not sets:
        return ""
    rows = [["texts that hold any term", *CONVENTIONS, "of", "kind"]]
    for row in totals(sets):
        counts = [str(row[key]) for key in (*CONVENTIONS, "texts")]
        rows.append([row["set"], *counts, row["kind"]])
    return "\n".join(columns(rows, last=True))


def _ordinary(hits: Sequence[Mapping[str, Any]]) -> str:
    return _listed(
        "Terms in ordinary text (paper; texts that hold them)",
        ({**row, "n": row["paper"]} for row in hits if row["kind"] == ORDINARY),
    )


def _folded_only(hits: Sequence[Mapping[str, Any]]) -> str:
    return _listed(
        "Found by folded and not by paper in the same text",
        ({**row, "n": row["folded_only"]} for row in hits),
    )


def _listed(title: str, rows: Iterable[Any]) -> str:
    by_target: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        if row["n"]:
            terms = by_target.setdefault(row["target"], {})
            terms.setdefault(row["term"], []).append(f"{row['set']} {row['n']}")
    lines = [
        f"  {target}: " + "; ".join(f'"{term}" ({", ".join(n)})' for term, n in terms.items())
        for target, terms in by_target.items()
    ]
    return "\n".join([title, *lines]) if lines else ""


def _flawed(terms: Sequence[Mapping[str, Any]]) -> str:
    titles = {
        "never_in_ascii": "Terms that paper cannot find in any ASCII text",
        "edge_punctuation": "Terms with punctuation at an edge",
        "nested_in": "Terms inside longer terms",
    }
    parts = []
    for flag, title in titles.items():
        flagged = [row for row in terms if row[flag]]
        lines = [
            f"  {target}: " + "; ".join(row["term"] for row in flagged if row["target"] == target)
            for target in dict.fromkeys(row["target"] for row in flagged)
        ]
        if lines:
            parts.append("\n".join([title, *lines]))
    return "\n\n".join(parts)


def _names(names: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for target in dict.fromkeys(row["target"] for row in names):
        known = [row for row in names if row["target"] == target]
        seen = [row["name"] for row in known if row["paper"]]
        unseen = [row["name"] for row in known if not row["paper"]]
        said = [f"not covered: {', '.join(unseen)}"] * bool(unseen)
        said += [f"covered: {', '.join(seen)}"] * bool(seen)
        lines.append(f"  {target}: {'; '.join(said)}")
    return "\n".join(["Names alone, does any term cover them (paper)", *lines])


def _write(path: Path, table: Sequence[Mapping[str, Any]]) -> None:
    if not table:
        return
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
