"""A results folder with real manifests and run.json, made by stages that only write what they get.

Everything lies relative to the working directory, as in a run: tests change into a fresh one.
"""

import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from unlearning_grid.grid import Cell, evaluations, expand, warmups
from unlearning_grid.paths import policy_dir, stage_dir
from unlearning_grid.runtime.job import Job
from unlearning_grid.runtime.manifest import NAME
from unlearning_grid.runtime.stage import Request, run_stage
from unlearning_grid.spec.canonical import canonical, digest_text
from unlearning_grid.spec.plan import EVALUATION_STAGES
from unlearning_grid.tables.results import Results

FILES = {
    "completions": "completions.parquet",
    "likelihoods": "mia.parquet",
    "audit": "labels.parquet",
    "rwku": None,  # one file a set: given as {set: frame}
}
LEARNED = {"status": "learned", "steps": 60, "planned_steps": 60, "first_epoch_active_rate": 0.4}
NO_LEARNING = {
    "status": "no-learning",
    "steps": 50,
    "planned_steps": 60,
    "first_epoch_active_rate": 0.0123,
    "first_epoch_rollouts": 25,
    "no_learning_threshold": 0.05,
}


@contextmanager
def working_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run stages in `folder`: no look at the machine, and the process's own SIGTERM afterwards."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("unlearning_grid.runtime.stage.provenance", dict)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


class Tree:
    """Results of a small grid below the working directory, made stage by stage.

    Args:
        axes: sizes, targets, inits, rewards, seeds of the grid.
    """

    def __init__(self, **axes: Any) -> None:
        self.settings: dict[str, dict[str, Any]] = {}  # policy -> further settings in its spec
        self.cells: list[Cell] = expand({**axes, "exclude": axes.get("exclude", [])})

    def spec(self, folder: Path, version: int = 1) -> str:
        """A spec that no other folder has; another version stands for an edit."""
        return canonical(
            {
                "stage": "stub",
                "cell": {"folder": folder.as_posix()},
                "settings": {"version": version} | self.settings.get(_policy(folder), {}),
                "code": "c",
                "env": "e",
            }
        )

    def digest(self, folder: Path) -> str:
        """Digest of a folder's spec."""
        return digest_text(self.spec(folder))

    @property
    def plan(self) -> dict[str, Any]:
        """What write_plan writes for this grid."""
        policies = [*warmups(self.cells), *(cell.policy for cell in self.cells)]
        wanted = evaluations(self.cells)
        folders = [policy_dir(policy) for policy in policies]
        folders += [stage_dir(stage, e.policy, e.target) for e in wanted for stage in FILES]
        return {
            "name": "tree",
            "cells": [vars(c) | {"policy": c.policy, "warmup": c.warmup} for c in self.cells],
            "evaluations": [dict(vars(item)) for item in wanted],
            "opinions": [],
            "sampled_audits": [],
            "samples": 0,
            "expected": {f.as_posix(): self.digest(f) for f in folders},
        }

    @property
    def planned(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(folder, rule, cell) of everything in the plan, as spec.plan.planned has it."""
        found: list[tuple[str, str, dict[str, Any]]] = []
        for name in warmups(self.cells):
            found.append((policy_dir(name).as_posix(), "train_warmup", {}))
        for cell in self.cells:
            facts = {**vars(cell), "seed": str(cell.seed)}
            found.append((policy_dir(cell.policy).as_posix(), "train_grpo", facts))
        for item in evaluations(self.cells):
            for stage, rule in EVALUATION_STAGES.items():
                folder = stage_dir(stage, item.policy, item.target).as_posix()
                found.append((folder, rule, dict(vars(item))))
        return found

    def results(self, strict: bool = False) -> Results:
        """A fresh look at what is there."""
        return Results(self.plan, strict)

    def make(
        self,
        folder: Path,
        outputs: Mapping[str, Any],
        inputs: Sequence[Path] = (),
        version: int = 1,
    ) -> None:
        """Publish `outputs` (file name -> data frame, JSON value, or an exception to raise)."""

        def stage(job: Job) -> None:
            for name, content in outputs.items():
                if isinstance(content, BaseException):
                    raise content
                if name.endswith(".parquet"):
                    content.to_parquet(job.outputs[name], index=False)
                else:
                    job.outputs[name].write_text(json.dumps(content), encoding="utf-8")

        request = Request(
            load_stage=lambda: stage,
            spec_text=self.spec(folder, version),
            inputs={"made_from": [path / NAME for path in inputs]},
            outputs={name: folder / name for name in outputs},
            folder=folder,
        )
        run_stage(request)

    def train(self, policy: str, outcome: Any = None, version: int = 1) -> None:
        """A trained policy; a warm cell is made from its warm-up."""
        start = [policy_dir(c.warmup) for c in self.cells if c.policy == policy and c.warmup]
        content = LEARNED if outcome is None else outcome
        self.make(policy_dir(policy), {"outcome.json": content}, start, version)

    def evaluate(self, policy: str, target: str, **frames: Any) -> None:
        """Completions of a policy, and what is given (likelihoods, audit, rwku) made from them."""
        import pandas as pd

        completions = stage_dir("completions", policy, target)
        trained = [] if policy.startswith("base/") else [policy_dir(policy)]
        shown = pd.DataFrame({"policy": [policy], "trained": [_content(trained)]})
        self.make(completions, {FILES["completions"]: shown}, trained)
        for stage, frame in frames.items():
            name = FILES[stage]
            outputs = {name: frame} if name else {f"{s}.parquet": f for s, f in frame.items()}
            self.make(stage_dir(stage, policy, target), outputs, [completions])


def _policy(folder: Path) -> str:
    return folder.relative_to("results").as_posix()


def _content(folders: Sequence[Path]) -> str:
    """What a policy is, so that another policy has other completions."""
    return "".join((folder / "outcome.json").read_text(encoding="utf-8") for folder in folders)
