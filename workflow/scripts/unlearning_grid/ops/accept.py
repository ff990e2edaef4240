"""Accept a harmless edit: results made from an older spec count as made from the current one.

For an edit that changes a digest but no result (a renamed variable, a rewritten loop). The old
digest, the new one and the reason stay in run.json and are shown by the cells table. The manifest
does not change, so nothing below is run again.
"""

import argparse
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unlearning_grid.config import ROOT, load_file
from unlearning_grid.errors import UserError
from unlearning_grid.ops.standing import matches
from unlearning_grid.runtime import manifest
from unlearning_grid.runtime.atomic import read_json, write_json
from unlearning_grid.runtime.ingredients import ingredients
from unlearning_grid.spec.canonical import digest
from unlearning_grid.spec.plan import planned
from unlearning_grid.spec.stages import Specs

log = logging.getLogger(__name__)


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `accept`."""
    parser = commands.add_parser(
        "accept", parents=[common], help="count results of an older spec as current"
    )
    parser.add_argument("rule", help="rule whose results to accept, train_grpo for example")
    parser.add_argument("cells", nargs="*", help="patterns below results/, such as 'grpo/7b/*'")
    parser.add_argument("--reason", required=True, help="why the edit cannot change the results")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    if any(Path(".snakemake/locks").glob("*")):
        raise UserError(
            "accept: this directory is locked: a controller runs, or was killed; wait for it, or "
            "give your snakemake command once with --unlock"
        )
    specs = Specs(load_file(arguments.config))
    folders = accept(specs, arguments.rule, arguments.cells, arguments.reason)
    touch(folders, arguments.config)
    print(f"accepted {len(folders)} result(s) of {arguments.rule}")


def accept(specs: Specs, rule: str, patterns: Sequence[str], reason: str) -> list[str]:
    """Re-stamp the stale results of a rule; returns their folders.

    Args:
        patterns: shell patterns of folders below results/ ("grpo/7b/*"); none means all.
    Raises UserError without a reason, for an unknown rule, when nothing matches, and when a result
    is built on something that is stale itself (accept or rerun that first).
    """
    if not reason.strip():
        raise UserError("accept: give a --reason; it stays with the results")
    everything = list(planned(specs))
    known = sorted({found for _, found, _ in everything})
    if rule not in known:
        raise UserError(f"accept: no results of rule {rule!r}; one of {known}")
    expected = {folder: (found, cell) for folder, found, cell in everything}
    chosen = [
        folder
        for folder, (found, _) in expected.items()
        if found == rule
        and matches(folder.removeprefix("results/"), patterns)
        and (Path(folder) / manifest.RUN_NAME).is_file()
    ]
    if not chosen:
        raise UserError(f"accept: no finished result of {rule} matches {list(patterns)}")
    stale = [folder for folder in chosen if _is_stale(specs, folder, expected)]
    for folder in stale:
        _check_upstream(specs, folder, expected)
    for folder in stale:
        _restamp(Path(folder), specs.spec(expected[folder][0], **expected[folder][1]), reason)
    return stale


def touch(folders: Sequence[str], config: Path) -> None:
    """Let Snakemake take these results as made from the current spec, and record them so."""
    if not folders:
        return
    targets = [f"{folder}/{manifest.NAME}" for folder in folders]
    # Without --force a file that Snakemake sees no reason to make gets no record.
    words = ["--touch", "--force", "--quiet", "all", "--cores", "1", "--configfile", str(config)]
    words += ["--snakefile", str(ROOT / "Snakefile"), "--directory", "."]
    words += ["--rerun-triggers", "params", "--"]
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *words, *targets], capture_output=True, text=True
    )
    if done.returncode:
        raise UserError(
            f"snakemake --touch failed: {done.stderr[-2000:]}\nRun `ops orphans --record` once it "
            "can work here: the results are stamped, and Snakemake does not know"
        )


def _is_stale(specs: Specs, folder: str, expected: dict[str, Any]) -> bool:
    rule, cell = expected[folder]
    run = read_json(Path(folder) / manifest.RUN_NAME)
    return run is None or run["spec_digest"] != specs.digest(rule, **cell)


def _check_upstream(specs: Specs, folder: str, expected: dict[str, Any]) -> None:
    for path in manifest.read(Path(folder) / manifest.NAME)["inputs"]:
        upstream = Path(path).parent.as_posix()
        if upstream in expected and _is_stale(specs, upstream, expected):
            raise UserError(
                f"accept: {folder} was made from {upstream}, which is stale; accept or rerun that"
            )
        _check_upstream(specs, upstream, expected)


def _restamp(folder: Path, spec: dict[str, Any], reason: str) -> None:
    run = read_json(folder / manifest.RUN_NAME)
    assert run is not None
    entry = {"from": run["spec_digest"], "to": digest(spec), "reason": reason.strip()}
    run |= {
        "spec": spec,
        "spec_digest": entry["to"],
        **ingredients(spec),
        "accepted": [*run.get("accepted", []), entry],
    }
    write_json(folder / manifest.RUN_NAME, run)
    log.info("accepted %s", folder)
