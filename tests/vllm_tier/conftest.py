"""vLLM's CPU build in its own environment, the finished micro grid, and a grid run with vLLM.

The folder is not called vllm: it would be what `import vllm` finds.
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.conftest import MICRO, micro  # noqa: F401  the fixture
from support import ROOT, environment, snakemake

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
SMALL_MODEL = ROOT / ".models" / "smollm2-135m-instruct"
HERE = Path(__file__).parent
SHARE = 0.1  # of the machine's memory


def with_vllm(folder: Path, **changes: Any) -> Path:
    """The micro grid's configuration with vLLM as its engine, and changes by block."""
    values = yaml.safe_load(MICRO.read_text(encoding="utf-8"))
    engine = {"backend": "vllm", "vllm_memory_share": SHARE}  # jobs find .venv-vllm
    for block, change in {"generate": engine, **changes}.items():
        if block == "generate":
            change = engine | change
        values[block] = values[block] | change
    path = folder / "vllm.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def run(config: Path, directory: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    """Run targets of a configuration, one job at a time."""
    return snakemake(["--cores", "1", "--configfile", str(config)], directory, targets)


def in_vllm(*words: str, directory: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the vLLM environment's Python with the library in reach."""
    return subprocess.run(
        [str(PYTHON), *words],
        cwd=directory,
        env=environment()
        | {"PYTHONPATH": str(ROOT / "workflow" / "scripts"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def asked(function: str, **arguments: Any) -> Any:
    """What a function of in_engine.py returns in the vLLM environment."""
    done = in_vllm(str(HERE / "in_engine.py"), function, json.dumps(arguments))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session", autouse=True)
def environment_is_there() -> None:
    """`make test-vllm` installs both; this tier is about nothing else, so nothing is skipped."""
    assert PYTHON.exists() and (SMALL_MODEL / "config.json").exists(), "run `make test-vllm`"


@pytest.fixture(scope="session")
def by_vllm(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """The finished micro grid, its completions made again by vLLM. Do not change it: copy it."""
    folder = tmp_path_factory.mktemp("vllm")
    shutil.copytree(micro, folder / "grid", symlinks=True)
    done = run(with_vllm(folder), folder / "grid", "all")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "grid"
