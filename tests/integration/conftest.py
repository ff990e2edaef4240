"""The micro grid, run once for all tests: every rule, real training, a minute or two."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import ROOT, snakemake

MICRO = ROOT / "config" / "micro.yaml"


def run_micro(directory: Path, *targets: str, root: Path = ROOT):
    """Run the micro grid in a working directory; returns the finished process."""
    config = root / "config" / "micro.yaml"
    words = ["--cores", "2", "--configfile", str(config)]
    return snakemake([*words, "--quiet", "rules"], directory, targets or ["all"], root)


@pytest.fixture(scope="session")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Working directory of a finished micro grid. Do not change it: copy it."""
    directory = tmp_path_factory.mktemp("micro")
    done = run_micro(directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.fixture
def micro_copy(micro: Path, tmp_path: Path) -> Path:
    """A copy of the finished grid, free to change."""
    target = tmp_path / "copy"
    shutil.copytree(micro, target, symlinks=True)
    return target


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For training in this process: with more, two busy cores are many times slower."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
