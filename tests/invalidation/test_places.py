"""Results that were copied, linked, cloned beside or that outlived Snakemake's memory."""

import shutil
import subprocess
from pathlib import Path

import pytest

from invalidation.changes import code
from invalidation.conftest import COPIED, ops, planned, run_all
from invalidation.expected import NOTHING, TABLES, below, without

pytestmark = pytest.mark.xdist_group("invalidation")

R4 = ("bruce-lee", "karl-marx"), ("cold", "warm")
CELLS = {f"grpo/tiny/{target}/{init}/r4-refusal/s0" for target in R4[0] for init in R4[1]}


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def named(printed: str) -> set[str]:
    """Folders below results/ that `verify` names."""
    lines = [line.strip() for line in printed.splitlines() if line.startswith("    results/")]
    return {line.partition(":")[0].removeprefix("results/") for line in lines}


def test_a_copy_elsewhere_with_spaces_in_its_path(project: Path) -> None:
    assert " " in str(project)
    assert planned(project).counts == NOTHING
    code("rewards.refusal")(project)
    assert planned(project).counts == below(cells=4)


def test_a_clone_beside_the_results(project: Path, tmp_path: Path) -> None:
    """Every file of a fresh clone is newer than every result."""
    git(project, "init", "--quiet")
    git(project, "add", *COPIED)
    git(project, "commit", "--quiet", "-m", "as it was")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(project), str(clone))
    assert {path.name for path in clone.iterdir()} == {".git", *COPIED}
    for name in ("results", ".snakemake"):
        shutil.move(project / name, clone / name)
    assert planned(clone).counts == NOTHING


def test_another_working_directory(project: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "results are here"
    elsewhere.mkdir()
    for name in ("results", ".snakemake"):
        shutil.move(project / name, elsewhere / name)
    assert planned(project, elsewhere).counts == NOTHING
    code("rewards.refusal")(project)
    assert planned(project, elsewhere).counts == below(cells=4)


def test_results_behind_a_link(project: Path, tmp_path: Path) -> None:
    """As on a cluster, where they lie on a larger disk."""
    shutil.move(project / "results", tmp_path / "large disk")
    (project / "results").symlink_to(tmp_path / "large disk")
    assert planned(project).counts == NOTHING
    code("rewards.refusal")(project)
    assert planned(project).counts == below(cells=4)


def test_nothing_follows_a_stage_that_wrote_the_same(project: Path) -> None:
    """In a run of its own: within one run, what follows a job is run with it."""
    code("data.split")(project)
    assert planned(project).counts["train_grpo"] == 16
    done = run_all(project, "--until", "split_target")
    assert done.returncode == 0, done.stdout + done.stderr
    assert planned(project).counts == TABLES


@pytest.fixture
def forgotten(project: Path) -> Path:
    """Results without `.snakemake`: it was deleted, or they were copied without it."""
    shutil.rmtree(project / ".snakemake")
    return project


def test_results_that_snakemake_remembers_nothing_of(forgotten: Path) -> None:
    assert planned(forgotten).counts == NOTHING
    done = ops(forgotten, "verify", "--deep")
    assert done.returncode == 0, done.stdout + done.stderr
    assert named(done.stdout) == set()


def test_then_an_edit_is_noticed_by_verify_only(forgotten: Path) -> None:
    code("rewards.refusal")(forgotten)
    assert planned(forgotten).counts == NOTHING
    done = ops(forgotten, "verify", "--all")
    assert done.returncode == 1
    names = named(done.stdout)
    evaluated = {f"{cell}/on/{cell.split('/')[2]}" for cell in CELLS}
    stages = ("terminal", "completions", "samples", "likelihoods", "rwku")
    stages += ("audit", "opinions/lower-bound/r0", "sampled/audit")
    stale = CELLS | {f"{stage}/{name}" for stage in stages for name in evaluated}
    assert {name for name in names if not name.startswith(("plan", "tables", "figures"))} == stale
    ops(forgotten, "verify", "--reopen")
    assert planned(forgotten).counts == below(cells=4)


def test_what_snakemake_is_told_of_it_remembers(forgotten: Path) -> None:
    done = ops(forgotten, "orphans", "--record")
    assert done.returncode == 0, done.stdout + done.stderr
    code("rewards.refusal")(forgotten)
    assert planned(forgotten).counts == below(cells=4)


def test_outputs_that_changed_are_found_by_a_deep_look(forgotten: Path) -> None:
    path = forgotten / "results" / "audit" / "base" / "tiny" / "on" / "karl-marx" / "labels.parquet"
    path.write_text("something else, from another run")
    assert ops(forgotten, "verify").returncode == 0
    done = ops(forgotten, "verify", "--deep")
    assert done.returncode == 1
    assert named(done.stdout) == {"audit/base/tiny/on/karl-marx"}


@pytest.mark.parametrize("patterns", [(), (min(CELLS),)], ids=["all", "one"])
def test_a_cell_to_be_trained_again(project: Path, patterns: tuple[str, ...]) -> None:
    shutil.rmtree(project / "results" / min(CELLS))
    assert planned(project).counts == NOTHING  # its tables are there
    done = ops(project, "verify", *patterns, "--reopen")
    assert done.returncode == 1
    assert min(CELLS) in named(done.stdout)
    assert planned(project).counts == without(below(cells=1), "write_plan")


def test_an_audit_with_failed_verdicts_is_made_again_on_command(project: Path) -> None:
    """Snakemake makes no missing file again while the tables that were made from it are there."""
    run = project / "results/audit/base/tiny/on/bruce-lee/run.json"
    text = run.read_text(encoding="utf-8")
    run.write_text(text.replace('"facts": {', '"facts": {"failed_verdicts": 2, '), encoding="utf-8")
    assert planned(project).counts == NOTHING
    done = ops(project, "retry")
    assert "base/tiny/on/bruce-lee: 2 verdict(s) failed, reopened" in done.stdout, done.stderr
    tables = ("build_cells_table", "build_heldout_audit_table", "build_judge_agreement_table")
    expected = {"audit_completions": 1, **dict.fromkeys(tables, 1), "all": 1}
    assert planned(project).counts == expected
