"""Weighted lexical reward: exp(-scale * sum over terms of weight * min(count, max_count)).

From "Beyond Binary Rewards" (arXiv 2607.27968; scale 1, at most 3 occurrences of a term count).
Each term's occurrences are counted by themselves, nested ones too under convention "paper".  The
weights come from models/term_weights.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from unlearning_grid.data.matching import TermMatcher
from unlearning_grid.rewards.base import RewardContext, Scores, require
from unlearning_grid.rewards.lexical import lexical_columns


def penalty(counts: Mapping[str, int], weights: Mapping[str, float], max_count: int) -> float:
    """Sum of weight x count over terms, each count cut at `max_count`."""
    return sum(weights[term] * min(count, max_count) for term, count in counts.items())


class PagerankReward:
    """pagerank-lex over the hard and soft terms of the target and their weights."""

    name = "pagerank-lex"
    needs = frozenset({"terms", "term_weights"})

    def __init__(self, settings: dict, context: RewardContext) -> None:
        """Raises ValueError when a term has no weight or a negative one."""
        terms = require(self.name, "terms", context.terms)
        self._weights = require(self.name, "term_weights", context.term_weights)
        wrong = [term for term in terms if not self._weights.get(term, -1.0) >= 0]
        if wrong:
            raise ValueError(f"reward {self.name}: terms without a weight of 0 or more: {wrong}")
        self._matcher = TermMatcher(terms, settings.get("convention", "paper"))
        self._scale = float(settings.get("scale", 1.0))
        self._max_count = int(settings.get("max_count", 3))

    def score(self, prompts: list[str], completions: list[str]) -> Scores:
        """Values in (0, 1]; columns term_penalty (before scaling), lexical_hits, matched_terms."""
        counts = [self._matcher.counts(text) for text in completions]
        penalties = [penalty(found, self._weights, self._max_count) for found in counts]
        values: list[float | None] = [math.exp(-self._scale * p) for p in penalties]
        hits = [list(found) for found in counts]
        return Scores(values, {"term_penalty": penalties, **lexical_columns(hits)})
