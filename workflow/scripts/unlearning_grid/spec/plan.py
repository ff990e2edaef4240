"""The plan of a grid: every result it should hold, and the spec digest that makes it current."""

from typing import TYPE_CHECKING, Any

from unlearning_grid.grid import evaluations, warmups
from unlearning_grid.paths import policy_dir, stage_dir

if TYPE_CHECKING:
    from unlearning_grid.spec.stages import Specs

EVALUATION_STAGES = {
    "completions": "generate_completions",
    "audit": "audit_completions",
    "rwku": "evaluate_rwku",
}


def build_plan(specs: "Specs") -> dict[str, Any]:
    """{"name", "cells": [facts], "evaluations": [facts], "expected": {folder: spec digest}}."""
    cells = specs.config.cells
    expected: dict[str, str] = {}
    for policy in warmups(cells):
        _, size, target, seed = policy.split("/")
        expected[policy_dir(policy).as_posix()] = specs.digest(
            "train_warmup", size=size, target=target, seed=seed.removeprefix("s")
        )
    for cell in cells:
        expected[policy_dir(cell.policy).as_posix()] = specs.digest(
            "train_grpo",
            size=cell.size,
            target=cell.target,
            init=cell.init,
            reward=cell.reward,
            seed=str(cell.seed),
        )
    wanted = evaluations(cells)
    for item in wanted:
        for stage, rule in EVALUATION_STAGES.items():
            folder = stage_dir(stage, item.policy, item.target).as_posix()
            expected[folder] = specs.digest(rule, policy=item.policy, target=item.target)
    return {
        "name": specs.config["name"],
        "cells": [vars(cell) | {"policy": cell.policy, "warmup": cell.warmup} for cell in cells],
        "evaluations": [vars(item) for item in wanted],
        "expected": expected,
        "judge": specs._judge(specs.config["audit"]["judge"]) | {"prompt": None},
        "detector": specs._detector(),
    }
