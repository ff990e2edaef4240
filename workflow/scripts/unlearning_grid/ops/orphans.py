"""What lies below results/ that this grid does not use, and what works or ended unattended."""

import argparse
import os
from ast import literal_eval
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unlearning_grid.config import load_file
from unlearning_grid.errors import UserError
from unlearning_grid.ops.accept import touch
from unlearning_grid.ops.standing import Standing, results_of, survey
from unlearning_grid.ops.workers import Worker, all_workers
from unlearning_grid.paths import RESULTS
from unlearning_grid.runtime import attempts
from unlearning_grid.runtime.atomic import read_json, remove
from unlearning_grid.runtime.job import KEPT
from unlearning_grid.runtime.lease import is_held, is_running
from unlearning_grid.runtime.manifest import NAME, RUN_NAME
from unlearning_grid.spec.canonical import digest_text
from unlearning_grid.spec.stages import Specs

METADATA = Path(".snakemake") / "metadata"
BESIDE = (RESULTS / "partial",)
"""Folders of this grid with a manifest that no plan lists."""
LISTED = 10


@dataclass
class Orphans:
    """What was found.

    Attributes:
        unplanned: folders of results that the plan does not name -> bytes, work folders included.
        leftover: work folders of current results, which no job resumes -> bytes.
        workers: who works below results/ now.
        unknown: current results of which Snakemake has no record, and so would notice no edit, or
            an older one, and so would make them again.
    """

    unplanned: dict[Path, int] = field(default_factory=dict)
    leftover: dict[Path, int] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    unknown: list[Path] = field(default_factory=list)


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `orphans`."""
    parser = commands.add_parser(
        "orphans", parents=[common], help="results of no cell, workers, results without a record"
    )
    parser.add_argument("--all", action="store_true", help="name every folder, not the first few")
    parser.add_argument(
        "--delete", action="store_true", help="delete unplanned results and leftover work folders"
    )
    parser.add_argument("--yes", action="store_true", help="with --delete: really do it")
    parser.add_argument(
        "--record",
        action="store_true",
        help="have Snakemake record the results that it does not know, as made from their spec",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    specs = Specs(load_file(arguments.config))
    if arguments.delete:
        check_grid(specs.config["name"])
    results, above, built = results_of(specs)
    found = look(survey(results, above + built), results.plan["expected"], METADATA)
    print("\n".join(report(found, None if arguments.all else LISTED)))
    status = 0
    doomed = [*found.unplanned, *found.leftover]
    if arguments.delete and doomed and not arguments.yes:
        raise UserError("orphans: nothing deleted; look at the list, then add --yes")
    if arguments.delete:
        gone = delete(doomed)
        print(f"\ndeleted {len(gone)} of {len(doomed)} folders")
        for folder in [folder for folder in doomed if folder not in gone]:
            print(f"    {folder.as_posix()}: still there; in use, or not ours to delete")
            status = 1
    if arguments.record and found.unknown:
        touch([folder.as_posix() for folder in found.unknown], arguments.config)
        print(f"\nrecorded {len(found.unknown)} results")
    return status


def check_grid(name: str) -> None:
    """Raise UserError when what lies below results/ was made for a grid of another name."""
    there = (read_json(RESULTS / "plan" / "plan.json") or {}).get("name", name)
    if there != name:
        raise UserError(
            f"orphans: nothing deleted: results/ is of grid {there!r}, and the configuration is "
            f"{name!r}; give --config FILE of the grid whose orphans you mean"
        )


def look(standings: Sequence[Standing], expected: Mapping[str, str], metadata: Path) -> Orphans:
    """Compare what lies below results/ with every result of a grid.

    Args:
        standings: of all that is planned, tables included.
        expected: folder -> digest of the spec that the configuration implies now.
        metadata: Snakemake's records; the folder need not be there.
    """
    found = Orphans(workers=all_workers(RESULTS))
    planned = {standing.folder for standing in standings}
    for folder in _result_folders():
        if folder not in planned and folder not in BESIDE:
            found.unplanned[folder] = size_of(folder)
    for standing in standings:
        spec = expected[standing.folder.as_posix()]
        found.leftover |= {work: size_of(work) for work in _leftover(standing, spec)}
        if standing.current and not recorded(metadata, standing.folder / NAME, spec):
            found.unknown.append(standing.folder)
    return found


def _result_folders() -> Iterator[Path]:
    """Every folder below results/ in which a job wrote, finished or not."""
    for place, folders, files in os.walk(RESULTS):
        folders.sort()
        if "work" in folders or {NAME, attempts.FAILURE_NAME} & set(files):
            folders.clear()
            yield Path(place)


def _leftover(standing: Standing, expected: str) -> Iterator[Path]:
    """Work folders that were made from another spec than the one expected, or beside the result.

    One whose spec is not known, and one that a worker holds, stays.
    """
    run = read_json(standing.folder / RUN_NAME) if standing.current else None
    lines = attempts.read(standing.folder)
    other = {line["key"] for line in lines if line.get("spec", expected) != expected}
    for work in sorted(standing.folder.glob("work/*")):
        if not work.is_dir() or work.name == KEPT or is_held(work):
            continue
        if work.name != run["key"] if run else work.name in other:
            yield work


def recorded(metadata: Path, path: Path, expected: str) -> bool:
    """Whether Snakemake has a record of an output as made from the spec of this digest.

    Its records are as of version 9: one file an output, params as Python would print them.
    """
    name = urlsafe_b64encode(path.as_posix().encode()).decode()
    limit = os.pathconf(metadata, "PC_NAME_MAX") - 1 if metadata.is_dir() else 254
    parts = [name[i : i + limit] for i in range(0, len(name), limit)]
    record = read_json(metadata.joinpath(*(f"@{part}" for part in parts[:-1]), parts[-1]))
    if not record:
        return False
    values = [literal_eval(text) for text in record.get("params") or []]
    return any(digest_text(value) == expected for value in values if isinstance(value, str))


def size_of(folder: Path) -> int:
    """Bytes below a folder; what is linked twice counts once."""
    seen = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            status = path.stat()
            seen[status.st_dev, status.st_ino] = status.st_size
    return sum(seen.values())


def delete(folders: Sequence[Path]) -> list[Path]:
    """Delete results and work folders that nobody works on, with their outputs; returns them."""
    gone = []
    for folder in folders:
        if is_running(folder) or is_held(folder):
            continue
        described = read_json(folder / NAME) or {}
        (folder / NAME).unlink(missing_ok=True)  # what is half deleted must not count
        for name in described.get("outputs", {}):
            output = Path(os.path.normpath(folder / name))
            if output.is_relative_to(RESULTS) and output.name.startswith(folder.name):
                remove(output)
        if folder.parent.name == "work":
            attempts.note_killed(folder)  # its seconds stay in the ledger
        remove(folder)
        if not folder.exists():
            _remove_empty(folder.parent)
            gone.append(folder)
    return gone


def _remove_empty(folder: Path) -> None:
    while folder != RESULTS and folder.is_relative_to(RESULTS) and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def report(found: Orphans, listed: int | None) -> list[str]:
    """What was found, as lines."""
    lines = [
        *_sized("Results that this grid does not name", found.unplanned, listed),
        *_sized("Work folders that no job resumes", found.leftover, listed),
        f"Workers that hold a work folder now: {len(found.workers)}",
        *_some([_worker(worker) for worker in found.workers], listed),
        f"Current results that Snakemake does not know as such: {len(found.unknown)}",
        *_some([f"    {folder.as_posix()}" for folder in found.unknown], listed),
    ]
    if found.unknown:
        lines.append(
            "    It would notice no edit, or make them again; `orphans --record` tells it."
        )
    return lines


def _worker(worker: Worker) -> str:
    folder = worker.work.parents[1].as_posix()
    return f"    {folder}: {worker.where}, {worker.sign_of_life}"


def _sized(what: str, folders: Mapping[Path, int], listed: int | None) -> list[str]:
    total = f", {megabytes(sum(folders.values()))}" if folders else ""
    names = [f"    {folder.as_posix()}: {megabytes(size)}" for folder, size in folders.items()]
    return [f"{what}: {len(folders)}{total}", *_some(names, listed)]


def _some(lines: Sequence[str], listed: int | None) -> list[str]:
    if listed is None or len(lines) <= listed:
        return list(lines)
    return [*lines[:listed], f"    … and {len(lines) - listed} more (--all)"]


def megabytes(size: int) -> str:
    """Bytes for people."""
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"
