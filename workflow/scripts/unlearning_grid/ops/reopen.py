"""Having results made again, also where Snakemake sees no reason to.

Snakemake does not make a missing file again while everything that was made from it is there: it
asks for the tables, and these exist. So a result is reopened together with all that was made from
it, down to the tables. Data, weights and completions stay where they are; a result without its
manifest counts for nothing, and its next job writes all of it anew.
"""

from collections.abc import Iterable
from pathlib import Path

from unlearning_grid.paths import RESULTS
from unlearning_grid.runtime.atomic import read_json, remove
from unlearning_grid.runtime.lease import is_running
from unlearning_grid.runtime.manifest import NAME

TARGETS = (RESULTS / "tables", RESULTS / "figures")
"""What `snakemake all` asks for lies there: their files must go, not only the manifest."""


def reopen(roots: Iterable[Path], planned: Iterable[Path]) -> list[Path]:
    """Take away the manifests of `roots` and of all that was made from them.

    Of tables and figures the files that `all` asks for go too, also where the manifest is missing
    already; they are built again in seconds. What a worker holds stays, with what was made from it.
    Returns the folders reopened.

    Args:
        planned: folders of every result above the tables (spec.plan), upstream first.
    """
    wanted = {folder for folder in roots if not is_running(folder)}
    opened: dict[Path, None] = {}
    for folder in dict.fromkeys([*planned, RESULTS / "plan", *_targets()]):
        described = read_json(folder / NAME)
        if not described or is_running(folder):
            continue
        made_from = {Path(path).parent for path in described["inputs"]}
        if folder in wanted or not made_from.isdisjoint(wanted | opened.keys()):
            opened[folder] = None
    for folder in opened:
        (folder / NAME).unlink()
    for folder in wanted | opened.keys():
        if any(folder.is_relative_to(target) for target in TARGETS):
            for path in folder.parent.glob(f"{folder.name}.*"):
                remove(path)
    return list(opened)


def _targets() -> list[Path]:
    return [path.parent for target in TARGETS for path in sorted(target.glob(f"*/{NAME}"))]
