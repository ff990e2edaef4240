"""GRPO as the grid runs it against a plain TRL script with the same settings, in one run.

    PYTHONPATH=workflow/scripts .venv/bin/python benchmarks/training.py [cell] [steps] [repeats]

Needs a finished grid with a cold R0 cell (`make demo`): `cell` is its folder of results, from the
working directory. Both sides train `steps` steps on its model and prompts, one after the other,
`repeats` times; ours with its checks, rollout files, checkpoints and kept adapters, the other with
TRL's trainer and a reward function of three lines; checkpoints every 10 steps on both. Prints
seconds per rollout and its two updates (median), the ratio, where ours spends its time, and the
machine.
"""

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from trl.trainer.grpo_trainer import GRPOTrainer

from unlearning_grid.data.rwku import read_jsonl
from unlearning_grid.models.chat import render
from unlearning_grid.models.load import load_model, load_tokenizer, locate
from unlearning_grid.runtime.job import Job
from unlearning_grid.spec.operations import combine
from unlearning_grid.train.arguments import grpo_arguments
from unlearning_grid.train.grpo import Run
from unlearning_grid.train.lora import lora_config

CELL = "results/grpo/tiny/bruce-lee/cold/r0-lex/s0"


class Clock(TrainerCallback):
    """Seconds per rollout, with its updates and whatever callbacks do in between."""

    def __init__(self, reuse: int) -> None:
        self.reuse = reuse
        self.seconds: list[float] = []
        self.began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.reuse == 0:
            now = time.perf_counter()
            if self.began:
                self.seconds.append(now - self.began)
            self.began = now

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds.append(time.perf_counter() - self.began)


def job_of(cell: Path, folder: Path, steps: int) -> Job:
    """The cell's own job, shorter, in `folder`."""
    run = json.loads((cell / "run.json").read_text())
    spec = run["spec"]
    rule = spec["settings"]["no_learning"] | {"enabled": False}
    often = {"save_steps": 10, "keep_adapters_every": 25}  # as the paper's grid
    spec["settings"] = combine(spec["settings"], run["provenance"]["operations"])
    spec["settings"] |= {"max_steps": steps, "no_learning": rule, **often}
    split = f"results/data/{spec['cell']['target']}/split/manifest.json"
    inputs = {"split": Path(split), "model": Path("results/world/manifest.json")}
    return Job(spec=spec, inputs=inputs, outputs={}, work=folder / "key")


def ours(job: Job) -> GRPOTrainer:
    """The trainer of rule train_grpo."""
    return Run(job).build_trainer()


def plain(job: Job) -> GRPOTrainer:
    """TRL's own trainer with the same options, and R0 as one would write it."""
    from datasets import Dataset

    settings = job.settings
    where = locate(job, settings["model"])
    tokenizer = load_tokenizer(where)
    rows = read_jsonl(job.artefact("split", "grpo_train.jsonl"))
    terms = [term.lower() for term in settings["reward"]["terms"]]

    def reward(completions: list[str], **_: Any) -> list[float | None]:
        return [float(not any(term in text.lower() for term in terms)) for text in completions]

    return GRPOTrainer(
        model=load_model(where),
        args=grpo_arguments(settings, job.work),
        reward_funcs=[reward],
        train_dataset=Dataset.from_list(
            [{"prompt": render(tokenizer, row["prompt"])} for row in rows]
        ),
        processing_class=tokenizer,
        peft_config=lora_config(settings["lora"]),
    )


def measure(build: Callable[[Job], Any], cell: Path, steps: int) -> tuple[list[float], Any]:
    """Seconds of each rollout but the first, which warms up; and where the time went."""
    with tempfile.TemporaryDirectory() as name:
        job = job_of(cell, Path(name), steps)
        job.work.mkdir()
        trainer = build(job)
        clock = Clock(job.settings["num_iterations"])
        trainer.add_callback(clock)
        parts = timed(trainer)
        trainer.train()
        return clock.seconds[1:], parts


def timed(trainer: Any) -> dict[str, float]:
    """Total seconds spent in the parts of a rollout, filled in as the trainer runs."""
    total: dict[str, float] = defaultdict(float)

    def watch(name: str, part: str) -> None:
        original = getattr(trainer, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                total[part] += time.perf_counter() - began

        setattr(trainer, name, call)

    watch("_generate", "sampling")
    watch("_calculate_rewards", "reward, rollout file")
    watch("_generate_and_score_completions", "rollout")
    watch("training_step", "step")
    watch("_save_checkpoint", "checkpoint")
    return total


def main(cell: Path, steps: int, repeats: int) -> None:
    seconds: dict[str, list[float]] = {"ours": [], "plain": []}
    spent: dict[str, float] = defaultdict(float)
    for _ in range(repeats):
        for name, build in (("plain", plain), ("ours", ours)):
            found, parts = measure(build, cell, steps)
            seconds[name] += found
            if name == "ours":
                for part, value in parts.items():
                    spent[part] += value
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    rest = spent["rollout"] - spent["sampling"] - spent["reward, rollout file"]
    shares = {
        "sampling": spent["sampling"],
        "old and reference log-probabilities": rest,
        "reward, rollout file": spent["reward, rollout file"],
        "forward and backward of the updates": spent["step"] - spent["rollout"],
        "checkpoints": spent["checkpoint"],
    }
    print(f"{len(seconds['ours'])} rollouts a side, after one to warm up in each of {repeats} runs")
    for name, value in medians.items():
        print(f"{name:6} {value:7.3f} s per rollout and its updates (median)")
    print(f"ratio ours / plain {medians['ours'] / medians['plain']:.3f}")
    whole = sum(shares.values())
    for name, value in shares.items():
        print(f"{value / whole:6.1%} {name}")
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores")


if __name__ == "__main__":
    words = sys.argv[1:] + [CELL, "24", "3"][len(sys.argv) - 1 :]
    main(Path(words[0]), int(words[1]), int(words[2]))
