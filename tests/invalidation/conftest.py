"""A copy of the project whose demo grid is finished, with stub stages."""

import shutil
import subprocess
from pathlib import Path

import pytest

from support import ROOT, snakemake

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
    config = ["--configfile", "config/demo.yaml", "--replace-workflow-config"]
    return snakemake(["--cores", "2", "--quiet", "all", *config, *words], project, ["all"], project)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished demo grid. Tests copy it, or undo what they change."""
    project = copy_project(tmp_path_factory.mktemp("grid") / "project")
    done = run_all(project)
    assert done.returncode == 0, done.stdout + done.stderr
    return project
