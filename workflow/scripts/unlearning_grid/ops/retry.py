"""Asking again for verdicts that failed.

An audit with few failed verdicts is a finished result that counts them as missing: nothing reruns
it, or `all` would never be done while one text is filtered. It is reopened with the tables that
were made from it. The next run makes the audit again; verdicts that were given come from the judge
cache, so only the missing ones are asked for.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unlearning_grid.config import load_file
from unlearning_grid.ops.reopen import reopen as reopen_with_tables
from unlearning_grid.paths import RESULTS
from unlearning_grid.runtime.atomic import read_json, remove
from unlearning_grid.runtime.lease import is_running
from unlearning_grid.runtime.manifest import NAME, RUN_NAME
from unlearning_grid.spec.stages import Specs

AUDITS = ("audit", "opinions", "terminal")


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `retry`."""
    parser = commands.add_parser(
        "retry", parents=[common], help="have the next run ask again for verdicts that failed"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    found = reopen(Specs(load_file(arguments.config)).plan())
    for folder, failed in found.items():
        print(f"{folder.as_posix()}: {failed} verdict(s) failed, reopened")
    print(f"{len(found)} audit(s) reopened" + ("; run the grid again" if found else ""))


def failed_verdicts(plan: Mapping[str, Any]) -> dict[Path, int]:
    """Folder of every finished audit of any kind with failed verdicts -> how many."""
    found = {}
    for folder in map(Path, plan["expected"]):
        if folder.relative_to(RESULTS).parts[0] not in AUDITS:
            continue
        run = read_json(folder / RUN_NAME) if (folder / NAME).is_file() else None
        failed = run["facts"].get("failed_verdicts", 0) if run else 0
        if failed:
            found[folder] = failed
    return found


def reopen(plan: Mapping[str, Any]) -> dict[Path, int]:
    """Reopen every audit that `failed_verdicts` finds and that nobody works on; returns them."""
    found = {folder: n for folder, n in failed_verdicts(plan).items() if not is_running(folder)}
    for folder in found:
        for result in folder.glob("work/*/result"):
            remove(result)
    reopen_with_tables(found, map(Path, plan["expected"]))
    return found
