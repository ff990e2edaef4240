"""R2 and the audit with a real judge over HTTP: outages, kills, and what is asked again."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import yaml

from integration.conftest import MICRO
from judge_server import Answer, Asked, JudgeServer
from support import ROOT, environment, snakemake
from unlearning_grid.judge.labels import RUBRIC, SIX

pytestmark = pytest.mark.xdist_group("micro")

CELL = "results/grpo/tiny/bruce-lee/cold/r2-rubric/s0"
AUDIT = "results/audit/base/tiny/on/bruce-lee"


def verdict(asked: Asked) -> str:
    """Labels drawn from the text itself, so that every run gets the same."""
    fields = asked.body["response_format"]["json_schema"]["schema"]["required"]
    digest = hashlib.sha256(asked.data["completion"].encode()).digest()
    bits = {name: "true" if digest[i] % 2 else "false" for i, name in enumerate(fields)}
    assert fields in (list(RUBRIC), list(SIX))
    return "{" + ", ".join(f'"{name}": {bit}' for name, bit in bits.items()) + "}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    running = JudgeServer()
    running.say = verdict
    monkeypatch.setenv("JUDGE_KEY", "sk-test")
    monkeypatch.setenv("JUDGE_URL", running.url)
    yield running
    running.close()


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """The micro grid with a judge over HTTP for R2 and for the audits."""
    values = yaml.safe_load(MICRO.read_text(encoding="utf-8"))
    remote = {
        "provider": "openai",
        "api": "chat",
        "model": "m",
        "base_url": "$JUDGE_URL",
        "key_variable": "JUDGE_KEY",
    }
    folder = "config/prompts/reworded-v1"
    values["judges"]["reward"] = remote | {"prompt_file": f"{folder}/rubric.txt"}
    values["sampled_audit"]["judge"] = "lower-bound"
    values["judges"]["audit"] = remote | {"prompt_file": f"{folder}/audit-six.txt"}
    values["warmup"]["monitor"] = {"enabled": False}
    values["grpo"]["save_steps"] = 6  # none before the end: the outage must make its own
    path = tmp_path / "remote.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def words(config_file: Path) -> list[str]:
    return ["--cores", "1", "--configfile", str(config_file)]


def run(directory: Path, config_file: Path, result: str) -> Any:
    return snakemake(words(config_file), directory, [f"{result}/manifest.json"])


def test_an_outage_in_grpo_is_no_reward_and_the_rollout_is_sampled_again(
    micro_copy: Path, config_file: Path, server: JudgeServer
) -> None:
    """Fails above the share, from a checkpoint of its own; then equals a run without outage."""
    undisturbed = run(micro_copy, config_file, CELL)
    assert undisturbed.returncode == 0, undisturbed.stdout + undisturbed.stderr
    asked = len(server.asked)
    expected = json.loads((micro_copy / CELL / "manifest.json").read_text())
    rollouts: Any = pd.read_parquet(micro_copy / CELL / "rollouts.parquet")
    assert set(rollouts["verdict"]) <= {"ok", "refusal"} and rollouts["reward"].notna().all()
    judged = rollouts[rollouts["judged"]]
    assert asked == judged[["prompt", "completion"]].drop_duplicates().shape[0]
    assert judged["request"].notna().all()

    forget(micro_copy, CELL)
    second = set(rollouts[rollouts["rollout"] == 1]["completion"]) - set(
        rollouts[rollouts["rollout"] == 0]["completion"]
    )
    assert second, "the second rollout must bring texts that are not in the cache"
    server.respond = lambda asked: (
        Answer(finish="content_filter") if asked.data["completion"] in second else Answer()
    )
    failed = run(micro_copy, config_file, CELL)
    assert failed.returncode != 0
    log = (micro_copy / CELL / "train_grpo.log").read_text()
    assert "of the rewards of rollout 1 are missing" in log
    assert "grpo.max_missing_share" in log
    assert list((micro_copy / CELL / "work").glob("*/checkpoints/checkpoint-2/complete.json"))

    before = len(server.asked)
    server.respond = lambda asked: Answer()
    resumed = run(micro_copy, config_file, CELL)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "resuming from" in (micro_copy / CELL / "train_grpo.log").read_text()
    assert json.loads((micro_copy / CELL / "manifest.json").read_text()) == expected
    later = {(a.data["prompt"], a.data["completion"]) for a in server.asked[before:]}
    first = rollouts[rollouts["rollout"] == 0]
    assert not later & set(zip(first["prompt"], first["completion"], strict=True))


def test_a_run_that_is_stopped_while_it_waits_for_a_judge_goes_on_with_that_rollout(
    micro_copy: Path, config_file: Path, server: JudgeServer
) -> None:
    """SIGTERM in an outage: a checkpoint from before the rollout, then the unbroken run's bytes."""
    assert run(micro_copy, config_file, CELL).returncode == 0
    expected = json.loads((micro_copy / CELL / "manifest.json").read_text())
    rollouts: Any = pd.read_parquet(micro_copy / CELL / "rollouts.parquet")
    first = set(rollouts[rollouts["rollout"] == 0]["completion"])
    forget(micro_copy, CELL)
    before = len(server.asked)
    server.respond = lambda asked: Answer(delay=0 if asked.data["completion"] in first else 300)
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--directory", str(micro_copy), *words(config_file), "--", f"{CELL}/manifest.json"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 240
        while not any(a.data["completion"] not in first for a in server.asked[before:]):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
        for child in psutil.Process(process.pid).children(recursive=True):
            if any("train_grpo.py" in word for word in child.cmdline()):
                child.send_signal(signal.SIGTERM)
        began = time.monotonic()
        process.wait(timeout=120)
    assert time.monotonic() - began < 60, "it does not wait for the judge"
    log = (micro_copy / CELL / "train_grpo.log").read_text()
    assert "stopped on request" in log
    assert list((micro_copy / CELL / "work").glob("*/checkpoints/checkpoint-2/complete.json"))
    server.respond = lambda asked: Answer()
    resumed = run(micro_copy, config_file, CELL)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert json.loads((micro_copy / CELL / "manifest.json").read_text()) == expected


def test_a_warm_up_goes_on_after_an_outage_of_its_monitors_judge(
    micro_copy: Path, config_file: Path, server: JudgeServer
) -> None:
    values = yaml.safe_load(config_file.read_text())
    values["warmup"]["monitor"] = {"max_new_tokens": 24, "samples": 2, "first_step": 2}
    config_file.write_text(yaml.safe_dump(values), encoding="utf-8")
    warmup = "results/warmup/tiny/bruce-lee/s0"
    server.respond = lambda asked: Answer(finish="content_filter")
    failed = run(micro_copy, config_file, warmup)
    assert failed.returncode != 0
    assert "monitor verdicts are missing" in (micro_copy / warmup / "train_warmup.log").read_text()
    server.respond = lambda asked: Answer()
    done = run(micro_copy, config_file, warmup)
    assert done.returncode == 0, done.stdout + done.stderr
    monitor: Any = pd.read_parquet(micro_copy / warmup / "monitor.parquet")
    assert len(monitor) and monitor["value"].notna().all()


def forget(directory: Path, result: str) -> None:
    """Delete a result, and what the judge said."""
    shutil.rmtree(directory / result)
    shutil.rmtree(directory / "results/judge_cache")


def test_a_killed_audit_asks_only_for_what_is_missing(
    micro_copy: Path, config_file: Path, server: JudgeServer
) -> None:
    """SIGKILL after some answers; the request counts of both runs add up."""
    values = yaml.safe_load(config_file.read_text())
    values["generate"]["sets"]["heldout"] = {"max_new_tokens": 24}
    values["split"] = {"max_rows": 160}  # 32 held out
    values["grpo"]["no_learning"] = {"enabled": False}
    config_file.write_text(yaml.safe_dump(values), encoding="utf-8")
    completions = "results/completions/base/tiny/on/bruce-lee"
    made = run(micro_copy, config_file, completions)
    assert made.returncode == 0, made.stdout + made.stderr
    table: Any = pd.read_parquet(micro_copy / completions / "completions.parquet")
    held = (table["set"] == "heldout") & (table["decoding"] == "plain")
    wanted = table[held][["prompt", "completion"]].drop_duplicates()
    assert len(wanted) == 32
    server.respond = lambda asked: Answer(delay=0.3)
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--directory", str(micro_copy), *words(config_file), "--", f"{AUDIT}/manifest.json"]
    shutil.rmtree(micro_copy / AUDIT)
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), start_new_session=True, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while len(server.asked) < 20 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.5)  # what was open comes to nothing
    first = [(a.data["prompt"], a.data["completion"]) for a in server.asked]
    server.respond = lambda asked: Answer()
    unlocked = snakemake([*words(config_file), "--unlock"], micro_copy)
    assert unlocked.returncode == 0, unlocked.stderr
    done = run(micro_copy, config_file, AUDIT)
    assert done.returncode == 0, done.stdout + done.stderr
    second = [(a.data["prompt"], a.data["completion"]) for a in server.asked[len(first) :]]
    kept = 32 - len(second)
    assert 4 <= kept < 32 and kept <= len(first), (kept, len(first), len(second))
    assert len(second) == len(set(second))
    labels: Any = pd.read_parquet(micro_copy / AUDIT / "labels.parquet")
    assert len(labels) == 32 and (labels["verdict"] == "ok").all()
    for row in labels.itertuples():
        bits = hashlib.sha256(row.completion.encode()).digest()
        assert [getattr(row, name) for name in SIX] == [bool(bits[i] % 2) for i in range(6)]

    again = len(server.asked)
    shutil.rmtree(micro_copy / AUDIT)
    assert run(micro_copy, config_file, AUDIT).returncode == 0
    assert len(server.asked) == again, "a finished audit costs nothing when it is made again"


def test_few_failed_verdicts_are_missing_counted_and_asked_for_again_on_command(
    micro_copy: Path, config_file: Path, server: JudgeServer
) -> None:
    values = yaml.safe_load(config_file.read_text())
    values["audit"] = {"max_missing_share": 0.2}
    config_file.write_text(yaml.safe_dump(values), encoding="utf-8")
    shutil.rmtree(micro_copy / AUDIT)
    seen: Counter[str] = Counter()

    def respond(asked: Asked) -> Answer:
        seen[asked.data["prompt"]] += 1
        return Answer(text="I would rather not say.") if asked.data["prompt"] == bad else Answer()

    completions: Any = pd.read_parquet(
        micro_copy / "results/completions/base/tiny/on/bruce-lee/completions.parquet"
    )
    held = (completions["set"] == "heldout") & (completions["decoding"] == "plain")
    prompts = completions[held]["prompt"].tolist()
    bad = prompts[3]
    server.respond = respond
    assert run(micro_copy, config_file, AUDIT).returncode == 0
    labels: Any = pd.read_parquet(micro_copy / AUDIT / "labels.parquet")
    assert labels["verdict"].tolist() == ["invalid" if p == bad else "ok" for p in prompts]
    assert labels.loc[labels["verdict"] == "invalid", list(SIX)].isna().all(axis=None)
    assert seen[bad] == 2 and set(seen.values()) == {1, 2}, "once more in the same run, no other"
    nothing = run(micro_copy, config_file, AUDIT)
    assert "Nothing to be done" in nothing.stdout + nothing.stderr

    done = subprocess.run(
        [sys.executable, "-m", "unlearning_grid.ops", "retry", "--config", str(config_file)]
        + ["--directory", str(micro_copy)],
        env=environment() | {"PYTHONPATH": str(ROOT / "workflow" / "scripts")},
        capture_output=True,
        text=True,
    )
    assert "1 audit(s) reopened; run the grid again" in done.stdout, done.stdout + done.stderr
    before = len(server.asked)
    server.respond = lambda asked: Answer()
    assert run(micro_copy, config_file, AUDIT).returncode == 0
    assert [a.data["prompt"] for a in server.asked[before:]] == [bad]
    labels = pd.read_parquet(micro_copy / AUDIT / "labels.parquet")
    assert (labels["verdict"] == "ok").all()
