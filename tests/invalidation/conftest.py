"""A copy of the project whose demo grid is finished, with stub stages."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from invalidation.changes import DEMO, Edit
from invalidation.dry_runs import DryRuns, demo
from invalidation.undo import Undo
from support import ROOT, Plan, environment, plan, snakemake

COPIED = ("Snakefile", "workflow", "config", "resources", "envs", "profiles")
ENTRY = """from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("stub_stage:make", globals().get("snakemake"))
"""


def copy_project(target: Path) -> Path:
    """Copy what a run needs of the checkout, with entry scripts that call the stub."""
    target.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
        else:
            shutil.copy2(source, target / name)
    scripts = target / "workflow" / "scripts"
    for script in scripts.glob("*.py"):
        if "stage_main" in script.read_text(encoding="utf-8"):
            script.write_text(ENTRY, encoding="utf-8")
    shutil.copy2(Path(__file__).with_name("stub_stage.py"), scripts)
    return target


def run_all(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the demo grid in the project's own folder."""
    run = ["--cores", "2", "--quiet", "all", *demo(), *words]
    return snakemake(run, project, ["all"], project)


def planned(root: Path, directory: Path | None = None) -> Plan:
    """The demo grid's dry run by a checkout, in its own folder or in another."""
    return plan(root / DEMO, directory or root, root=root)


def ops(project: Path, command: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the project's own library."""
    return subprocess.run(
        [sys.executable, "-m", "unlearning_grid.ops", command, "--config", DEMO, *words],
        cwd=project,
        env=environment() | {"PYTHONPATH": str(project / "workflow" / "scripts")},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished demo grid. Tests copy it, or undo what they change (`planned_after`)."""
    project = copy_project(tmp_path_factory.mktemp("grid") / "project")
    done = run_all(project)
    assert done.returncode == 0, done.stdout + done.stderr
    return project


@pytest.fixture(scope="session")
def planned_after(
    finished: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Edit], Plan]]:
    """What a dry run of the finished grid plans after an edit, which is undone at once."""
    undo = Undo(finished)
    scratch = tmp_path_factory.mktemp("printed")
    quick, plain = (DryRuns(finished, library, scratch) for library in (True, False))

    def after(edit: Edit) -> Plan:
        edit.change(finished)
        try:
            edited = any(name.endswith((".py", ".smk")) for name in undo.changed())
            return (plain if edited else quick).plan(edit.targets, edit.words)
        finally:
            undo.restore()

    yield after
    quick.close()
    plain.close()


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished grid in another folder: copying alone must replan nothing."""
    target = tmp_path / "a copy, elsewhere"
    shutil.copytree(finished, target, symlinks=True)
    return target
