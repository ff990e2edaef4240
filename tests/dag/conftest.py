"""Dry runs of the two grids, made once."""

from pathlib import Path

import pytest

from support import ROOT, Plan, plan


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dag")


@pytest.fixture(scope="session")
def demo(directory: Path) -> Plan:
    return plan(ROOT / "config" / "demo.yaml", directory)


@pytest.fixture(scope="session")
def paper(directory: Path) -> Plan:
    return plan(ROOT / "config" / "config.yaml", directory)
