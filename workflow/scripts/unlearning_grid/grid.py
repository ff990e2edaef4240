"""The grid: cells, policies and evaluations. Pure: lists in, lists out, in a stable order."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import Any


@dataclass(frozen=True, order=True)
class Cell:
    """One GRPO policy of the grid. Its identity holds only its own facts."""

    size: str
    target: str
    init: str
    reward: str
    seed: int

    @property
    def policy(self) -> str:
        """Policy id, which is also its path below results/."""
        return f"grpo/{self.size}/{self.target}/{self.init}/{self.reward}/s{self.seed}"

    @property
    def warmup(self) -> str | None:
        """Policy id of the warm-up that a warm cell starts from, None for a cold one."""
        if self.init == "cold":
            return None
        return warmup_policy(self.size, self.target, self.seed)


@dataclass(frozen=True, order=True)
class Evaluation:
    """A policy evaluated on a target: the one it was trained for; for a base model, every one."""

    policy: str
    target: str


def base_policy(size: str) -> str:
    """Policy id of an untouched model."""
    return f"base/{size}"


def warmup_policy(size: str, target: str, seed: int) -> str:
    """Policy id of an SFT warm-up."""
    return f"warmup/{size}/{target}/s{seed}"


_SEGMENT = r"[^/]+"
_POLICY = re.compile(
    rf"base/(?P<base>{_SEGMENT})"
    rf"|warmup/(?P<w_size>{_SEGMENT})/(?P<w_target>{_SEGMENT})/s(?P<w_seed>[0-9]+)"
    rf"|grpo/(?P<size>{_SEGMENT})/(?P<target>{_SEGMENT})/(?P<init>{_SEGMENT})"
    rf"/(?P<reward>{_SEGMENT})/s(?P<seed>[0-9]+)"
)


def parse_policy(policy: str) -> dict[str, Any]:
    """The facts in a policy id: kind, size and, where they apply, target, init, reward, seed.

    Raises ValueError for anything that is not a policy id.
    """
    match = _POLICY.fullmatch(policy)
    if match is None:
        raise ValueError(f"not a policy id: {policy!r}")
    found = match.groupdict()
    if found["base"]:
        return {"kind": "base", "size": found["base"]}
    if found["w_size"]:
        facts = {name: found[f"w_{name}"] for name in ("size", "target", "seed")}
        return {"kind": "warmup", **facts, "seed": int(facts["seed"])}
    names = ("size", "target", "init", "reward")
    return {"kind": "grpo", **{n: found[n] for n in names}, "seed": int(found["seed"])}


def expand(grid: Mapping[str, Any]) -> list[Cell]:
    """All cells of a grid block, less those that an `exclude` entry matches."""
    axes = (grid[k] for k in ("sizes", "targets", "inits", "rewards", "seeds"))
    cells = (Cell(*values) for values in product(*axes))
    return [cell for cell in cells if not any(matches(cell, rule) for rule in grid["exclude"])]


def matches(cell: Cell, rule: Mapping[str, Any]) -> bool:
    """Whether every key of an exclusion rule equals the cell's value."""
    return all(getattr(cell, key) == value for key, value in rule.items())


def warmups(cells: Sequence[Cell]) -> list[str]:
    """Policy ids of the warm-ups that the cells need, each once, in the order of the cells."""
    return list(dict.fromkeys(cell.warmup for cell in cells if cell.warmup))


def evaluations(cells: Sequence[Cell]) -> list[Evaluation]:
    """Every evaluation that the grid needs: base models, warm-ups, cells."""
    return list(dict.fromkeys(_evaluations(cells)))


def sizes(cells: Sequence[Cell]) -> list[str]:
    """The sizes of the cells, each once, in their order."""
    return list(dict.fromkeys(cell.size for cell in cells))


def is_meant(evaluation: Evaluation, where: Mapping[str, Any]) -> bool:
    """Whether an evaluation agrees with every key of `where`.

    Keys: kind, size, target, init, reward, seed. A key that its policy does not have, such as the
    reward of a base model, agrees with nothing.
    """
    facts = {**parse_policy(evaluation.policy), "target": evaluation.target}
    return all(key in facts and facts[key] == value for key, value in where.items())


def _evaluations(cells: Sequence[Cell]) -> Iterator[Evaluation]:
    for cell in cells:
        yield Evaluation(base_policy(cell.size), cell.target)
    for cell in cells:
        if cell.warmup:
            yield Evaluation(cell.warmup, cell.target)
    for cell in cells:
        yield Evaluation(cell.policy, cell.target)


def split_sizes(rows: int, split: Mapping[str, Any]) -> dict[str, int]:
    """Rows in each part of a target's split, before duplicates are removed.

    The `datasets` library takes the ceiling of fraction x rows, in floating point: 240 rows x
    (0.05 + 0.10) are 37 and not 36, which is why 300 rows give 60 / 203 / 24 / 13.
    """
    if split["max_rows"] is not None:
        rows = min(rows, split["max_rows"])
    heldout = ceil(split["audit_fraction"] * rows)
    test, train = split["sft_test_fraction"], split["sft_train_fraction"]
    candidates = ceil((test + train) * (rows - heldout))
    sft_test = ceil(test / (test + train) * candidates)
    return {
        "heldout": heldout,
        "grpo_train": rows - heldout - candidates,
        "sft_train": candidates - sft_test,
        "sft_test": sft_test,
    }


def first_epoch_rollouts(prompts: int, grpo: Mapping[str, Any]) -> int:
    """Rollouts in the first pass over the prompts; an incomplete last batch is dropped."""
    return prompts // (grpo["batch_size"] // grpo["num_generations"])
