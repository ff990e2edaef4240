"""Exponential lexical reward: exp(-n / tau), n places where a forbidden term stands.

From "Beyond Binary Rewards" (arXiv 2607.27968), where tau = 1.  There n is the number of matches of
one alternation of all terms: every occurrence counts, and a place counts once however many terms
overlap there.  Which of several overlapping terms wins is left to chance there and is the longest
here; the words' edges are the study's guards instead of \\b, so that "Love?" can be found.
"""

from __future__ import annotations

import math

from unlearning_grid.data.matching import TermMatcher
from unlearning_grid.rewards.base import RewardContext, Scores, require
from unlearning_grid.rewards.lexical import lexical_columns


def exponential_reward(places: int, tau: float) -> float:
    """exp(-places / tau)."""
    return math.exp(-places / tau)


class ExponentialReward:
    """exp-lex over the hard and soft terms of the target."""

    name = "exp-lex"
    needs = frozenset({"terms"})

    def __init__(self, settings: dict, context: RewardContext) -> None:
        terms = require(self.name, "terms", context.terms)
        self._matcher = TermMatcher(terms, settings.get("convention", "paper"))
        self._tau = float(settings.get("tau", 1.0))
        if self._tau <= 0:
            raise ValueError(f"reward {self.name}: tau {self._tau} must be above 0")

    def score(self, prompts: list[str], completions: list[str]) -> Scores:
        """Values in (0, 1]; columns lexical_places (n), lexical_hits, matched_terms."""
        places = [self._matcher.places(text) for text in completions]
        values: list[float | None] = [exponential_reward(len(p), self._tau) for p in places]
        distinct = [list(dict.fromkeys(p)) for p in places]
        columns = {"lexical_places": [len(p) for p in places], **lexical_columns(distinct)}
        return Scores(values, columns)
