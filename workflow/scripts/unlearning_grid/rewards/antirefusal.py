"""R1-AntiRefusal: R0 gating a bonus for not refusing (study, equation 11)."""

from __future__ import annotations

from unlearning_grid.data.matching import TermMatcher
from unlearning_grid.rewards.base import RewardContext, Scores, refusal_probabilities, require
from unlearning_grid.rewards.lexical import lexical_columns, lexical_reward

LEXICAL_WEIGHT = 0.4
NON_REFUSAL_WEIGHT = 0.6


def antirefusal_reward(lexical: float, refusal_probability: float) -> float:
    """round(0.4 F + 0.6 N F, 2) with F = R0 and N = round(1 - p, 2), p already rounded.

    A clean refusal still earns 0.4.
    """
    non_refusal = round(1 - refusal_probability, 2)
    return round(LEXICAL_WEIGHT * lexical + NON_REFUSAL_WEIGHT * non_refusal * lexical, 2)


class AntiRefusalReward:
    """R1-AntiRefusal over the terms of the target and the refusal detector."""

    name = "r1-antirefusal"
    needs = frozenset({"terms", "detector"})

    def __init__(self, settings: dict, context: RewardContext) -> None:
        terms = require(self.name, "terms", context.terms)
        self._matcher = TermMatcher(terms, settings.get("convention", "paper"))
        self._detector = require(self.name, "detector", context.detector)

    def score(self, prompts: list[str], completions: list[str]) -> Scores:
        """Values in {0} or [0.4, 1]; columns lexical_hits, matched_terms, refusal_probability."""
        hits = [self._matcher.hits(text) for text in completions]
        refusal = refusal_probabilities(self._detector, completions)
        values: list[float | None] = [
            antirefusal_reward(lexical_reward(found), p)
            for found, p in zip(hits, refusal, strict=True)
        ]
        return Scores(values, {**lexical_columns(hits), "refusal_probability": refusal})
