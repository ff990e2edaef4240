"""Kills at random moments of the trainings, by SIGTERM and by SIGKILL: the same results come out.

Where a kill falls is counted in files, not in seconds, so that a slow machine is hit at the same
points: so many files written by the trainings of this attempt, then at once or a moment later.
"""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from integration.conftest import MICRO, run_micro
from support import ROOT, environment, snakemake

pytestmark = pytest.mark.xdist_group("micro")

SEED = 7
KILLS = 10
WARMUP = "results/warmup/tiny/bruce-lee/s0"
CELLS = [
    f"results/grpo/tiny/bruce-lee/{init}/{reward}/s0"
    for init in ("cold", "warm")
    for reward in ("r0-lex", "r2-rubric")
]
TRAININGS = [WARMUP, *CELLS]
TIMED = ("lease-", "meter-", "progress.json")  # written by the clock
File = tuple[str, str, int]  # training, path below it, time of its last change
WORDS = ["--cores", "2", "--configfile", str(MICRO)]
MADE_FROM_THEM = (
    "completions",
    "likelihoods",
    "audit",
    "opinions/lower-bound/r0",
    "terminal",
    "rwku",
)


def test_ten_random_kills_of_the_grid_change_nothing(micro: Path, micro_copy: Path) -> None:
    """Half by SIGTERM, half by SIGKILL, then undisturbed to the end: every result is the same."""
    forget_trainings(micro_copy)
    print("seed", SEED)
    kills: list[Kill] = []
    for point in kill_points(random.Random(SEED)):
        kills.append(kill_once(micro_copy, *point))
        print(kills[-1])
    done = run_micro(micro_copy)
    assert done.returncode == 0, done.stdout + done.stderr

    for path in sorted((micro / "results/tables").glob("*.parquet")):
        found = pd.read_parquet(micro_copy / path.relative_to(micro))
        pd.testing.assert_frame_equal(found, pd.read_parquet(path), obj=path.stem)
    for result in TRAININGS:
        assert published(micro_copy / result) == published(micro / result), result
        run = json.loads((micro_copy / result / "run.json").read_text())
        ends = [line["outcome"] for line in run["attempts"] if line["event"] == "end"]
        starts = len(run["attempts"]) - len(ends)
        struck = sum(result in kill.struck for kill in kills)
        assert set(ends) <= {"interrupted", "killed", "finished"}, f"{result}: {ends}"
        assert starts == struck + ends.count("finished"), f"{result}: {run['attempts']}"
    for kind in (signal.SIGTERM, signal.SIGKILL):
        assert sum(bool(kill.struck) for kill in kills if kill.kind == kind) >= 3, kind


def test_sigterm_between_rollouts_saves_and_publishes_nothing(
    micro: Path, micro_copy: Path
) -> None:
    """The job finishes what the sampled rollout is used for, saves, and exits with 143."""
    cell = "results/grpo/tiny/bruce-lee/warm/r0-lex/s0"
    folder = micro_copy / cell
    shutil.rmtree(folder)
    with started(micro_copy, [f"{cell}/manifest.json"]) as process:
        deadline = time.monotonic() + 240
        while not list(folder.glob("work/*/rollouts/rollout-00000.parquet")):
            assert process.poll() is None and time.monotonic() < deadline, output(micro_copy)
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(timeout=90) != 0
    assert "returned non-zero exit status 143" in output(micro_copy)
    assert "stopped on request: saved at step 2 of 6" in (folder / "train_grpo.log").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["train_grpo.log", "work"]
    assert saved_steps(folder) == [2]
    assert [line.get("outcome") for line in ledger(folder)] == [None, "interrupted"]

    done = snakemake(WORDS, micro_copy, [f"{cell}/manifest.json"])
    assert done.returncode == 0, done.stdout + done.stderr
    log = (folder / "train_grpo.log").read_text()
    assert "resuming from" in log and "checkpoint-2" in log
    assert published(folder) == published(micro / cell)


@dataclass
class Kill:
    """One kill and what it fell into.

    Attributes:
        writes, seconds: when: after so many files, and so long after.
        struck: training -> the file it had written last, for those whose attempt was cut short.
    """

    kind: signal.Signals
    writes: int
    seconds: float
    struck: dict[str, str]

    def __str__(self) -> str:
        when = f"{self.kind.name} after {self.writes} files and {self.seconds:.2f} s"
        into = [f"{result} at {last}" for result, last in self.struck.items()]
        return f"{when}: {'; '.join(into) or 'no training'}"


def kill_points(rng: random.Random) -> list[tuple[signal.Signals, int, float]]:
    """Signal, files and seconds of every kill: in random order, and spread over a training.

    Two fall into its imports and the loading of its model, before it writes; of the others, every
    second one falls in between writes, which is where rollouts and updates are.
    """
    points = [(1, rng.uniform(0, 8)) for _ in range(2)]
    for part in range(KILLS - 2):
        points.append((2 + 5 * part + rng.randrange(5), rng.uniform(0, 0.6) if part % 2 else 0.0))
    rng.shuffle(points)
    kinds = (signal.SIGTERM, signal.SIGKILL)
    return [(kinds[number % 2], *point) for number, point in enumerate(points)]


def kill_once(directory: Path, kind: signal.Signals, writes: int, seconds: float) -> Kill:
    """Run the grid, trainings first, kill it, unlock it, and see what the kill has left."""
    known = {result: len(ledger(directory / result)) for result in TRAININGS}
    first = [f"{result}/manifest.json" for result in TRAININGS]
    before = files(directory)
    with started(directory, ["all"], ["--prioritize", *first]) as process:
        deadline = time.monotonic() + 240
        seen = files(directory) - before
        while len(seen) < writes and not all((directory / path).exists() for path in first):
            assert process.poll() is None and time.monotonic() < deadline, output(directory)
            time.sleep(0.005)
            seen |= files(directory) - before
        time.sleep(seconds)
        seen |= files(directory) - before
        os.killpg(process.pid, kind)
        written = sorted(files(directory) - before, key=itemgetter(2))
        try:
            assert process.wait(timeout=90) != 0
        except subprocess.TimeoutExpired:  # its handler of SIGTERM can lock Snakemake up
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if list(directory.glob(".snakemake/locks/*")):
        unlocked = snakemake([*WORDS, "--unlock"], directory)
        assert unlocked.returncode == 0, unlocked.stderr

    last = {result: path for result, path, _ in written}
    kill = Kill(kind, writes, seconds, {})
    for result in TRAININGS:
        assert not (directory / result / "failure.json").exists(), f"{kill}: {result}"
        lines = ledger(directory / result)[known[result] :]
        if lines and lines[-1].get("outcome") != "finished":
            kill.struck[result] = last.get(result, "its start")
    if kind == signal.SIGTERM:
        for cell, rollouts in sampled(seen).items():
            folder = directory / cell
            steps = saved_steps(folder)
            assert not any(step % 2 for step in steps), f"{kill}: saved within a rollout: {steps}"
            if not list(folder.glob("work/*/result/manifest.json")):
                assert steps and steps[-1] >= 2 * rollouts, f"{kill}: {rollouts}, saved at {steps}"
    return kill


@contextmanager
def started(
    directory: Path, targets: Sequence[str], extra: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """The micro grid in a process group of its own, all of it gone at the end."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
    command += ["--directory", str(directory), *WORDS, *extra, "--", *targets]
    with open(directory / "output", "wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(),
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def output(directory: Path) -> str:
    """What the last started Snakemake printed."""
    return (directory / "output").read_text(errors="replace")


def forget_trainings(directory: Path) -> None:
    """Delete the warm-up, all cells, and everything that was made from them."""
    for kind in ("warmup", "grpo"):
        for stage in ("", *MADE_FROM_THEM):
            made = directory / "results" / stage / kind
            if made.exists():  # a warm-up has no last rollouts
                shutil.rmtree(made)
    shutil.rmtree(directory / "results/tables")
    shutil.rmtree(directory / "results/figures")


def files(directory: Path) -> set[File]:
    """Files of the trainings as they are now, but for logs, progress and signs of life."""
    found = set()
    for result in TRAININGS:
        top = str(directory / result)
        for folder, _, names in os.walk(top):
            for name in names:
                if name[0] == "." or name.startswith(TIMED) or name.endswith(".log"):
                    continue
                path = os.path.join(folder, name)
                try:
                    found.add((result, os.path.relpath(path, top), os.stat(path).st_ctime_ns))
                except FileNotFoundError:
                    continue
    return found


def sampled(written: set[File]) -> dict[str, int]:
    """Cell -> rollouts it has, where one of them was sampled by this attempt."""
    found: dict[str, int] = {}
    for result, path, _ in written:
        number = re.fullmatch(r"work/\w+/rollouts/rollout-(\d+)\.parquet", path)
        if number:
            found[result] = max(found.get(result, 0), int(number[1]) + 1)
    return found


def saved_steps(folder: Path) -> list[int]:
    """Steps of the whole checkpoints in a training's work folder."""
    marks = folder.glob("work/*/checkpoints/checkpoint-*/complete*")
    return sorted(int(mark.parent.name.removeprefix("checkpoint-")) for mark in marks)


def ledger(folder: Path) -> list[dict[str, Any]]:
    """The lines about a training's attempts."""
    path = folder / "work/attempts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def published(folder: Path) -> dict[str, str]:
    """Digest of every published file of a training, but for what tells of its run."""
    apart = ("work", "run.json", "failure.json")
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name[0] != "."
        and path.suffix not in (".log", ".tsv")
        and path.relative_to(folder).parts[0] not in apart
    }
