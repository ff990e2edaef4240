"""`ops plan` counts, without Snakemake, the jobs that Snakemake's dry run counts."""

import csv
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from invalidation.changes import DEMO, LIBRARY, Change, Settings, append, both, nothing
from support import PLANNED, environment, plan

pytestmark = pytest.mark.xdist_group("invalidation")

EDITS: dict[str, Change] = {
    "nothing": nothing,
    "one setting of the warm-up": Settings({"warmup/epochs": 21}),
    "the audit's judge": Settings({"judges/audit": {"provider": "rules", "seed": 1}}),
    "one more seed": Settings({"grid/seeds": [0, 1, 2]}),
    "code of one table and a remark in the trainer": both(
        append(f"{LIBRARY}/tables/training.py", "\nEXTRA = 1\n"),
        append(f"{LIBRARY}/train/grpo.py", "\n# A remark.\n"),
    ),
}


def by_plan(project: Path, directory: Path) -> dict[str, int]:
    """Rule -> jobs by the project's own `ops plan`; tables and figures are one."""
    path = directory / "plan.csv"
    words = ["-m", "unlearning_grid.ops", "plan", "--config", str(project / DEMO)]
    words += ["--directory", str(directory), "--csv", str(path)]
    variables = environment() | {"PYTHONPATH": str(project / "workflow" / "scripts")}
    done = subprocess.run(
        [sys.executable, *words], env=variables, cwd=directory, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts: Counter[str] = Counter()
    with open(path, newline="") as handle:
        for row in csv.DictReader(handle):
            counts[row["rule"]] += int(row["jobs"])
    path.unlink()
    jobs = counts.total() + 1 if counts.total() else 0
    assert (f"Snakemake counts {jobs} jobs" if jobs else "Nothing to run.") in done.stdout
    return {rule: number for rule, number in counts.items() if number}


def by_snakemake(project: Path, directory: Path) -> dict[str, int]:
    """The same by a dry run, without the rule `all`."""
    found = Counter(plan(project / DEMO, directory, root=project).counts)
    tables = sum(found.pop(rule, 0) for rule in PLANNED if rule != "all")
    found.pop("all", None)
    return dict(found) | ({"tables, figures": tables} if tables else {})


def test_an_empty_directory(finished: Path, tmp_path: Path) -> None:
    expected = by_snakemake(finished, tmp_path)
    assert by_plan(finished, tmp_path) == expected
    assert sum(expected.values()) == 204


@pytest.mark.parametrize("name", EDITS)
def test_a_finished_grid_after_an_edit(finished: Path, tmp_path: Path, name: str) -> None:
    project = tmp_path / "project"
    shutil.copytree(finished, project, symlinks=True)
    EDITS[name](project)
    expected = by_snakemake(project, project)
    assert by_plan(project, project) == expected
    assert bool(expected) == (name != "nothing")
