"""Folders with names that break careless quoting: spaces, dots, dashes."""

import json
import shutil
from pathlib import Path

import pytest

from support import ROOT, config, plan, snakemake

pytestmark = pytest.mark.xdist_group("dag")

AWKWARD = "my runs/v1.2-final (copy)/a b.c-d"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict:
    changed = config("demo")
    changed["grid"] |= {"targets": ["bruce-lee"], "rewards": ["r0-lex"]}
    return changed


def checkout(folder: Path) -> Path:
    """A copy of what the workflow reads."""
    for name in ("workflow", "config", "resources", "envs", "profiles"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    shutil.copy(ROOT / "Snakefile", folder / "Snakefile")
    return folder


def test_an_awkward_working_directory_changes_no_job(small: dict, tmp_path: Path) -> None:
    plain = plan(small, tmp_path / "plain")
    assert plan(small, tmp_path / AWKWARD).jobs == plain.jobs


def test_a_rule_runs_in_an_awkward_checkout_and_directory(small: dict, tmp_path: Path) -> None:
    root = checkout(tmp_path / "check out-1.0 (main)")
    directory = tmp_path / AWKWARD
    planned = plan(small, directory, targets=["results/plan/manifest.json"], root=root)
    assert planned.counts == {"write_plan": 1}
    grid = directory.with_name(f"{directory.name}.config.yaml")
    words = ["--cores", "1", "--configfile", str(grid)]
    done = snakemake(words, directory, ["results/plan/manifest.json"], root=root)
    assert done.returncode == 0, done.stderr
    written = json.loads((directory / "results/plan/plan.json").read_text(encoding="utf-8"))
    assert written["name"] == "demo"
    assert len(written["cells"]) == 2
    assert (directory / "results/plan/write_plan.log").is_file()
    again = plan(small, directory, targets=["results/plan/manifest.json"], root=root)
    assert again.jobs == set()


def test_the_papers_grid_is_found_from_any_working_directory(tmp_path: Path) -> None:
    done = snakemake(["-n", "--quiet", "rules"], tmp_path, ["write_plan"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "grid: paper (320 cells)" in done.stdout + done.stderr
