"""A stage's script starts again under another interpreter, in the same process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT
from unlearning_grid.runtime import interpreter
from unlearning_grid.runtime.interpreter import check_interpreter, other_interpreter

VLLM = {"backend": "vllm"}
SCRIPT = f"""
import os, sys
sys.path.insert(0, {str(ROOT / "workflow" / "scripts")!r})
from unlearning_grid.runtime import interpreter
from unlearning_grid.runtime.interpreter import other_interpreter, start_again
print(os.getpid(), sys.executable, *sys.argv[1:], flush=True)
other = other_interpreter({{"backend": "vllm"}}, sys.argv[1])
if other:
    start_again(other)
"""


def test_the_script_runs_once_more_in_the_same_process(tmp_path: Path) -> None:
    other = tmp_path / "bin" / "python"
    other.parent.mkdir()
    other.symlink_to(sys.executable)
    (tmp_path / "stage.py").write_text(SCRIPT)
    words = [sys.executable, str(tmp_path / "stage.py"), str(other), "and more"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    first, second = (line.split(maxsplit=2) for line in done.stdout.splitlines())
    assert first[0] == second[0], "the same process, which Snakemake waits for"
    assert first[1] == sys.executable and second[1] == str(other)
    assert first[2] == second[2] == f"{other} and more"


def test_none_and_the_same_one_are_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert other_interpreter({}, "/opt/python") is None
    assert other_interpreter({"backend": "transformers"}, "/opt/python") is None
    assert other_interpreter(VLLM, sys.executable) is None
    monkeypatch.setenv("SITE", "/opt/site")
    assert other_interpreter(VLLM, "$SITE/bin/python") == Path("/opt/site/bin/python")
    assert other_interpreter(VLLM, "envs/bin/python") == ROOT / "envs/bin/python"


def test_the_environment_beside_the_checkout_is_found_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "python"
    monkeypatch.setattr(interpreter, "BESIDE", str(place))
    assert other_interpreter(VLLM, None) is None, "it was not made"
    place.write_text("")
    assert other_interpreter(VLLM, None) == place
    monkeypatch.setattr(interpreter, "find_spec", lambda name: name == "vllm")
    assert other_interpreter(VLLM, None) is None, "this environment has vLLM"


def test_one_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    plain = tmp_path / "python"
    plain.write_text("")
    os.chmod(plain, 0o644)
    for path in (plain, tmp_path / "absent", tmp_path):
        text = check_interpreter(path)
        assert text and text.startswith(f"generate.python: {path} cannot be started")
    os.chmod(plain, 0o755)
    assert check_interpreter(plain) is None
