"""Training jobs of a finished micro grid, to run in this process, and trainers to look into.

from training_job import grpo_job
job = grpo_job(micro, tmp_path, init="warm", max_steps=4)
"""

import json
from pathlib import Path
from typing import Any

from unlearning_grid.runtime.job import Job
from unlearning_grid.spec.operations import combine

BOTH = {"adapter": "adapter", "metrics": "metrics.parquet", "outcome": "outcome.json"}
GRPO_OUTPUTS = {**BOTH, "adapters": "adapters", "rollouts": "rollouts.parquet"}
WARMUP_OUTPUTS = {**BOTH, "monitor": "monitor.parquet"}
MADE_BY = {
    "split": "data/bruce-lee/split",
    "model": "world",
    "start": "warmup/tiny/bruce-lee/s0",
    "broad": "data/bruce-lee/broad",
    "detector": "detector/micro-refusal",
    "knowledge": "data/bruce-lee/knowledge",
}


def short(**changes: Any) -> dict[str, Any]:
    """Settings of a run of one rollout and two updates, with some changed."""
    rule = {"enabled": False, "threshold": 0.05, "timing": "before-update"}
    settings = {"max_steps": 2, "save_steps": 2, "keep_adapters_every": None, "no_learning": rule}
    return {**settings, **changes}


def grpo_job(
    micro: Path, folder: Path, init: str = "cold", reward: str = "r0-lex", **settings: Any
) -> Job:
    """The GRPO job of one cell of the micro grid, with some settings changed, in its own folder."""
    policy = f"grpo/tiny/bruce-lee/{init}/{reward}/s0"
    inputs = ["start"] if init == "warm" else []
    return _job(micro, folder, policy, inputs, GRPO_OUTPUTS, settings)


def warmup_job(micro: Path, folder: Path, **settings: Any) -> Job:
    """The warm-up of the micro grid, with some settings changed, in its own folder."""
    inputs = ["broad", "detector", "knowledge"]
    return _job(micro, folder, "warmup/tiny/bruce-lee/s0", inputs, WARMUP_OUTPUTS, settings)


def _job(
    micro: Path,
    folder: Path,
    policy: str,
    inputs: list[str],
    outputs: dict[str, str],
    settings: dict[str, Any],
) -> Job:
    results = micro / "results"
    spec = all_settings(results / policy)
    spec["settings"] |= settings
    for name in ("out", "work/key"):
        (folder / name).mkdir(parents=True)
    return Job(
        spec=spec,
        inputs={n: results / MADE_BY[n] / "manifest.json" for n in ["split", "model", *inputs]},
        outputs={name: folder / "out" / file for name, file in outputs.items()},
        work=folder / "work" / "key",
    )


def all_settings(folder: Path) -> dict[str, Any]:
    """The spec of a result, operational settings put back."""
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    settings = combine(run["spec"]["settings"], run["provenance"]["operations"])
    return run["spec"] | {"settings": settings}


def built(job: Job) -> tuple[Any, Any]:
    """The run of a job and its trainer, before the first step."""
    from unlearning_grid.train.grpo import Run

    run = Run(job)
    return run, run.build_trainer()
