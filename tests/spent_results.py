"""Results of a real configuration, made by the real run_stage, for tests of plan and cost.

Stages are stubs; specs, ledgers, manifests and judges over HTTP are real.
"""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from judge_server import judge_block
from support import ROOT
from unlearning_grid.judge.base import JudgeContext
from unlearning_grid.judge.labels import SIX
from unlearning_grid.judge.openai import OpenAIJudge
from unlearning_grid.runtime.job import Job
from unlearning_grid.runtime.manifest import NAME
from unlearning_grid.runtime.stage import Request, run_stage
from unlearning_grid.spec.plan import planned
from unlearning_grid.spec.stages import Specs

PAPER = ROOT / "config" / "config.yaml"
SPAWN = multiprocessing.get_context("spawn")
POLICY = "grpo/0.5b/bruce-lee/cold"
R0, R2 = f"results/{POLICY}/r0-lex/s1234", f"results/{POLICY}/r2-rubric/s1234"
AUDIT = f"results/audit/{POLICY}/r0-lex/s1234/on/bruce-lee"


def small_grid(path: Path, **blocks: Any) -> Path:
    """The paper's configuration with one target and two sizes, and keys of some blocks set.

    Of each size 8 cells, a warm-up, and evaluations of these and of the base model.
    """
    raw = yaml.safe_load(PAPER.read_text(encoding="utf-8"))
    raw["grid"] |= {"targets": ["bruce-lee"], "sizes": ["0.5b", "1.5b"]}
    for name, values in blocks.items():
        raw[name] |= values
    path.write_text(yaml.safe_dump(raw, sort_keys=False), encoding="utf-8")
    return path


def make(
    specs: Specs, folder: str, stage: Callable[[Job], Any], *made_from: str, version: int = 0
) -> None:
    """Run a stub stage as the planned result in `folder`; another version is another spec."""
    rule, cell = next((rule, cell) for at, rule, cell in planned(specs) if at == folder)
    spec = specs.spec(rule, **cell)
    if version:
        spec["settings"] = {**spec["settings"], "version": version}
    run_stage(
        Request(
            load_stage=lambda: stage,
            spec_text=json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False),
            inputs={"made_from": [Path(path) / NAME for path in made_from]},
            outputs={"made": Path(folder) / "made.txt"},
            folder=Path(folder),
        )
    )


def write(job: Job) -> None:
    """The output, and no more."""
    job.outputs["made"].write_text("made")


def asking(judge: str, *numbers: int, fails: bool = False) -> Callable[[Job], None]:
    """A stage that has completions with these numbers judged over HTTP, and may fail then."""

    def stage(job: Job) -> None:
        context = JudgeContext("Bruce Lee", cache=Path("results/judge_cache").absolute())
        pairs = [("Who?", f"c{number}") for number in numbers]
        OpenAIJudge(judge_block(name=judge), context).audit(pairs, SIX, [None] * len(pairs))
        if fails:
            raise ValueError("after the judge")
        write(job)

    return stage


def set_seconds(folder: str, *seconds: float) -> None:
    """What the ends in a ledger say, in their order, so that sums are known."""
    path = Path(folder) / "work/attempts.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    ends = [line for line in lines if line["event"] == "end"]
    for line, number in zip(ends, seconds, strict=True):
        line["seconds"] = number
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _hang(specs: Specs, folder: str) -> None:
    def stage(job: Job) -> None:
        (Path(folder) / "ready").touch()
        time.sleep(60)

    os.environ |= {"SLURM_JOB_ID": "12", "CUDA_VISIBLE_DEVICES": "3"}
    make(specs, folder, stage)


def kill(specs: Specs, folder: str) -> None:
    """A real attempt with one GPU, in a process of its own that is killed at work."""
    worker = SPAWN.Process(target=_hang, args=(specs, folder))
    worker.start()
    ready = Path(folder) / "ready"
    deadline = time.monotonic() + 30
    while not ready.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    ready.unlink()
