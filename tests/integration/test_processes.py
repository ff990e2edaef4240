"""GRPO in two processes: one result, whole, repeatable, and watched or not the same."""

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
import psutil
import pytest
import yaml
from safetensors.numpy import load_file

from integration.conftest import MICRO
from support import ROOT, environment, snakemake
from unlearning_grid.runtime import attempts

pytestmark = pytest.mark.xdist_group("micro")

CELL = "results/grpo/tiny/bruce-lee/cold/r0-lex/s0"
BETA = 0.04
# What INDUCED says: "wait" at each rollout, or "KIND N", an error of the second process at its Nth.
INDUCED = """
        import os, time
        from unlearning_grid.errors import UserError
        self.calls = getattr(self, "calls", 0) + 1
        induced = os.environ.get("INDUCED")
        if induced == "wait":
            time.sleep(3)
        for kind in (UserError, ValueError):
            if os.environ["RANK"] == "1" and induced == f"{kind.__name__} {self.calls}":
                raise kind("no judge here")
"""


def command(config: Path = MICRO, *resources: str) -> list[str]:
    """Snakemake's words for a run with two processes."""
    words = ["--cores", "2", "--configfile", str(config)]
    words += ["--quiet", "rules", "--set-resources"]
    return [*words, *(f"train_grpo:{word}" for word in ("processes=2", *resources))]


def forget(directory: Path) -> Path:
    """Remove the cell's result, as if it had never been trained; returns its folder."""
    shutil.rmtree(directory / CELL)
    return directory / CELL


@pytest.fixture(scope="module")
def pair(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the cell trained by two processes and shown in TensorBoard."""
    directory = tmp_path_factory.mktemp("pair") / "w"
    shutil.copytree(micro, directory, symlinks=True)
    forget(directory)
    words = command(MICRO, "report_to=tensorboard")
    made = snakemake(words, directory, [f"{CELL}/manifest.json"])
    assert made.returncode == 0, made.stdout + made.stderr
    assert "step 1 of 6" in made.stdout + made.stderr, "its progress is on the terminal"
    return directory


def test_two_processes_make_one_whole_result(pair: Path) -> None:
    outcome = json.loads((pair / CELL / "outcome.json").read_text())
    assert (outcome["status"], outcome["steps"], outcome["planned_steps"]) == ("learned", 6, 6)
    weights = load_file(pair / CELL / "adapter/adapter_model.safetensors")
    assert any(abs(w).max() > 0 for name, w in weights.items() if "lora_B" in name)
    rollouts: Any = pd.read_parquet(pair / CELL / "rollouts.parquet")
    assert len(rollouts) == outcome["completions"] == 3 * 64
    assert not rollouts.duplicated(["rollout", "group", "sample"]).any()
    assert (rollouts.groupby("rollout").size() == 64).all()
    assert (rollouts.groupby(["rollout", "group"])["prompt_id"].nunique() == 1).all()
    run = json.loads((pair / CELL / "run.json").read_text())
    assert run["facts"] == {"processes": 2, "status": "learned", "steps": 6}
    log = (pair / CELL / "train_grpo.log").read_text()
    assert "WARNING unlearning_grid" not in log and "[process 1]" not in log


def test_two_processes_ask_what_one_asks_and_write_something_else(pair: Path, micro: Path) -> None:
    both: Any = [pd.read_parquet(d / CELL / "rollouts.parquet") for d in (pair, micro)]
    keys = ["rollout", "group", "sample", "prompt_id", "prompt"]
    pd.testing.assert_frame_equal(both[0][keys], both[1][keys])
    texts = [list(rollouts["completion"][:64]) for rollouts in both]
    assert texts[0] != texts[1]


def test_the_loss_of_two_processes_is_the_studys_over_all_completions(pair: Path) -> None:
    """At a rollout's first update ratios are 1: -sum(A x tokens) / sum(tokens) + beta x KL."""
    metrics: Any = pd.read_parquet(pair / CELL / "metrics.parquet")
    logged: Any = metrics.pivot(index="step", columns="name", values="value")
    assert logged["kl"][1] == 0.0
    rollouts: Any = pd.read_parquet(pair / CELL / "rollouts.parquet")
    for number, rows in rollouts.groupby("rollout"):
        step = 2 * number + 1
        expected = -(rows["advantage"] * rows["tokens"]).sum() / rows["tokens"].sum()
        assert logged["loss"][step] == pytest.approx(expected + BETA * logged["kl"][step], abs=1e-6)
        assert logged["reward"][step] == pytest.approx(rows["reward"].mean())


def test_tensorboard_holds_the_curve_once(pair: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (key,) = [p.name for p in (pair / CELL / "work").iterdir() if p.is_dir()]
    folder = pair / "logs/tensorboard" / CELL.removeprefix("results/") / key
    (events,) = folder.iterdir()  # of the first process alone
    shown = EventAccumulator(str(events))
    shown.Reload()
    metrics: Any = pd.read_parquet(pair / CELL / "metrics.parquet")
    rewards = metrics[metrics["name"] == "reward"]
    assert [(e.step, e.value) for e in shown.Scalars("train/reward")] == [
        (step, pytest.approx(value))
        for step, value in zip(rewards["step"], rewards["value"], strict=True)
    ]
    assert list(rewards["step"]) == [1, 3, 5]


def project(folder: Path) -> Path:
    """The workflow with a reward that does what the variable INDUCED says.

    Its config/micro.yaml saves at the end only: a checkpoint before is made for its own reason.
    """
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("workflow", "config", "resources", "envs", "profiles"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copy2(ROOT / "Snakefile", folder)
    lexical = folder / "workflow/scripts/unlearning_grid/rewards/lexical.py"
    text = lexical.read_text()
    changed = text.replace("        hits = [", INDUCED.lstrip("\n") + "        hits = [")
    assert changed != text
    lexical.write_text(changed)
    values = yaml.safe_load(MICRO.read_text())
    values["grpo"]["save_steps"] = 6
    (folder / "config/micro.yaml").write_text(yaml.safe_dump(values))
    return folder


def processes_of(folder: Path) -> list[int]:
    """Ids of the processes that the last attempt started."""
    log = (folder / "train_grpo.log").read_text()
    return [int(pid) for pid in re.findall(r"2 processes.*: \[(\d+), (\d+)\]", log)[-1]]


def test_whatever_happens_to_one_process_happens_to_both_and_costs_nothing(
    pair: Path, micro_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error, an outage and a stop in turn, then a run to the end: the unbroken run's result."""
    root, folder = project(tmp_path / "project"), forget(micro_copy)
    words, target = command(root / "config/micro.yaml"), [f"{CELL}/manifest.json"]

    monkeypatch.setenv("INDUCED", "ValueError 1")  # known to one process only
    done = snakemake(words, micro_copy, target, root)
    assert done.returncode != 0
    failure = json.loads((folder / "failure.json").read_text())
    assert failure["error"] == "RuntimeError"
    assert failure["message"] == "ValueError: no judge here"
    assert "lexical.py" in failure["traceback"], "where it was raised"
    assert not any(psutil.pid_exists(pid) for pid in processes_of(folder))

    monkeypatch.setenv("INDUCED", "UserError 2")  # agreed on, and saved before
    done = snakemake(words, micro_copy, target, root)
    assert done.returncode != 0
    failure = json.loads((folder / "failure.json").read_text())
    assert (failure["error"], failure["message"]) == ("UserError", "no judge here")
    assert list(folder.glob("work/*/checkpoints/checkpoint-2/complete.json"))

    monkeypatch.setenv("INDUCED", "wait")
    stop_in_the_middle(micro_copy, root)
    assert not any(psutil.pid_exists(pid) for pid in processes_of(folder))
    assert not (folder / "manifest.json").exists()
    ends = [line.get("outcome", "start") for line in attempts.read(folder)]
    assert ends == ["start", "failed", "start", "failed", "start", "interrupted"]

    monkeypatch.delenv("INDUCED")
    done = snakemake(words, micro_copy, target, root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/checkpoint-4" in (folder / "train_grpo.log").read_text()
    assert (folder / "manifest.json").read_bytes() == (pair / CELL / "manifest.json").read_bytes()


def stop_in_the_middle(directory: Path, root: Path) -> None:
    """Send SIGTERM to the stage's process while its two processes score their second rollout."""
    words = [sys.executable, "-m", "snakemake", "--snakefile", str(root / "Snakefile")]
    words += ["--directory", str(directory), *command(root / "config/micro.yaml")]
    words += ["--", f"{CELL}/manifest.json"]
    seen = len(attempts.read(directory / CELL))
    running = subprocess.Popen(words, cwd=root, env=environment(), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 180
    log = directory / CELL / "train_grpo.log"
    while not log.exists() or "resuming from" not in log.read_text():
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)
    started = attempts.read(directory / CELL)[seen]
    os.kill(started["pid"], signal.SIGTERM)
    assert running.wait(timeout=180) != 0
    assert "/checkpoint-2" in log.read_text()
    assert "stopped on request: saved at step 4 of 6" in log.read_text()
