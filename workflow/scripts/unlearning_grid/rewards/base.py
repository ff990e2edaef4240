"""What every reward shares: its inputs (context) and its result (scores)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from unlearning_grid.judge.base import Verdict

NEEDS = frozenset({"terms", "hard_terms", "term_weights", "detector", "judge"})
"""What a reward may ask for in `needs`."""

DETECTOR_THRESHOLD = 0.5
"""A completion counts as a refusal from this rounded probability on."""


class Detector(Protocol):
    """A refusal detector."""

    def probabilities(self, texts: list[str]) -> list[float]:
        """Refusal probability of each text, in [0, 1]."""
        ...


RubricJudge = Callable[[Sequence[tuple[str, str]]], Sequence[Verdict]]
"""(prompt, completion) pairs -> a verdict on each, in order."""


@dataclass(frozen=True)
class RewardContext:
    """Everything a reward may look at beside the completions.

    Attributes:
        subject: the person to forget, as RWKU spells the name.
        terms: forbidden terms, hard ones first.
        hard_terms: those of them that name the person.
        term_weights: how much each of `terms` counts, from 0 to 1.
        detector: tells refusals.
        judge: labels whole batches.
    """

    subject: str
    terms: Sequence[str] = ()
    hard_terms: Sequence[str] = ()
    term_weights: Mapping[str, float] | None = None
    detector: Detector | None = None
    judge: RubricJudge | None = None


@dataclass(frozen=True)
class Scores:
    """One value a completion, None when it is missing (never 0), and columns of components.

    Every column has one entry a completion.
    """

    values: list[float | None]
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        wrong = {name: n for name, n in lengths.items() if n != len(self.values)}
        if wrong:
            raise ValueError(f"columns {wrong} do not have {len(self.values)} entries")


class Reward(Protocol):
    """Interface of a reward class. One module each; `registry.REWARDS` names them."""

    name: str
    needs: frozenset[str]

    def __init__(self, settings: dict, context: RewardContext) -> None: ...

    def score(self, prompts: list[str], completions: list[str]) -> Scores:
        """Score completions[i], written for prompts[i]."""
        ...


def require(reward: str, what: str, value: Any) -> Any:
    """`value`, or ValueError naming the part of the context that the reward lacks."""
    if value is None or (what != "detector" and not value):
        raise ValueError(f"reward {reward} needs {what}, but its context has none")
    return value


def refusal_probabilities(detector: Detector, completions: list[str]) -> list[float]:
    """Probabilities rounded to two decimals, as every reward of the study uses them.

    Rounding keeps tiny score differences from creating reward variance within a group (appendix
    C.1 of the study).
    """
    probabilities = detector.probabilities(completions)
    if len(probabilities) != len(completions):
        raise ValueError(f"detector gave {len(probabilities)} values for {len(completions)} texts")
    return [round(float(p), 2) for p in probabilities]
