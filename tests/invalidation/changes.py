"""Edits of a copy of the project, as functions of its folder."""

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from config_edits import put
from invalidation.expected import Counts

DEMO = "config/demo.yaml"
LIBRARY = "workflow/scripts/unlearning_grid"

Change = Callable[[Path], None]


@dataclass(frozen=True)
class Edit:
    """One row of the table.

    Attributes:
        name: what is edited, as docs/reruns.md says it.
        change: makes the edit in a copy of the project.
        planned: rule -> number of jobs that a dry run of the demo grid must then plan.
        words: further words for Snakemake's command line.
        targets: what is asked of Snakemake.
    """

    name: str
    change: Change
    planned: Counts
    words: tuple[str, ...] = ()
    targets: tuple[str, ...] = ("all",)


@dataclass(frozen=True)
class Settings:
    """Set keys of a configuration, given with slashes."""

    values: dict[str, Any]
    file: str = DEMO

    def __call__(self, project: Path) -> None:
        path = project / self.file
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        for key, value in self.values.items():
            put(key, value)(raw)
        path.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")


def replace(name: str, old: str, new: str) -> Change:
    """Replace text in one file; the text to replace must be there."""

    def change(project: Path) -> None:
        path = project / name
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{name} does not hold {old!r}"
        path.write_text(text.replace(old, new), encoding="utf-8")

    return change


def append(name: str, text: str) -> Change:
    """Add lines at the end of a file, which must be there."""

    def change(project: Path) -> None:
        path = project / name
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")

    return change


def code(module: str) -> Change:
    """Add a constant to a module of the library."""
    path = LIBRARY + "/" + module.replace(".", "/")
    return append(f"{path}.py", "\nEXTRA = 1\n")


def copy(name: str, to: str) -> Change:
    """Copy a file within the project."""

    def change(project: Path) -> None:
        shutil.copyfile(project / name, project / to)

    return change


def delete(name: str) -> Change:
    """Delete a file or folder."""

    def change(project: Path) -> None:
        path = project / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()

    return change


@dataclass(frozen=True)
class Both:
    """Several changes, one after the other."""

    changes: tuple[Change, ...]

    def __call__(self, project: Path) -> None:
        for change in self.changes:
            change(project)


def both(*changes: Change) -> Both:
    """Several changes, one after the other."""
    return Both(changes)


def keys_of(change: Change) -> list[str]:
    """Keys of the demo's configuration that a change sets."""
    if isinstance(change, Both):
        return [key for one in change.changes for key in keys_of(one)]
    if isinstance(change, Settings) and change.file == DEMO:
        return list(change.values)
    return []


def touch_everything(project: Path) -> None:
    """New times for every file, results too, in a random order."""
    files = [p for p in project.rglob("*") if p.is_file() and ".snakemake" not in p.parts]
    random.Random(0).shuffle(files)
    for path in files:
        os.utime(path)


def nothing(project: Path) -> None:
    """No change."""
