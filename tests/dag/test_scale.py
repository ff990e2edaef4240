"""How planning grows with the grid: in jobs exactly, in time as a ratio."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT, environment
from unlearning_grid.config import load_file
from unlearning_grid.spec.plan import planned
from unlearning_grid.spec.stages import Specs
from wide_grid import widened

pytestmark = pytest.mark.xdist_group("dag")

# Of one target of the paper's grid: 3 parts of rows, knowledge, split, broad answers; 4 sizes with
# prompts and a warm-up each; 32 cells with a terminal audit; 40 evaluations of 6 stages.
PER_TARGET = 3 + 1 + 1 + 1 + 4 * 2 + 32 * 2 + 40 * 6

PER_GRID = 1 + 4  # the detectors' table, and the base rows of every size


def test_results_grow_by_the_same_number_with_each_target(tmp_path: Path) -> None:
    for number in (10, 200):
        specs = Specs(load_file(widened(number, tmp_path)))
        results = [folder for folder, _, _ in planned(specs)]
        assert len(results) == len(set(results)) == number * PER_TARGET + PER_GRID


def test_a_dry_run_of_three_times_the_targets_takes_no_more_than_three_times_as_long(
    tmp_path: Path,
) -> None:
    """CPU time, which neighbours on the machine do not count in; nine times if it were square."""
    small, large = (cpu_seconds(widened(number, tmp_path), tmp_path) for number in (5, 15))
    assert large < 4 * small, f"{small:.1f} s for 5 targets, {large:.1f} s for 15"


def cpu_seconds(config: Path, folder: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", "snakemake", "-n", "--quiet", "rules"]
    words += ["--configfile", str(config), "--directory", str(folder)]
    subprocess.run(
        [*words, "--", "all"], cwd=ROOT, env=environment(), check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
