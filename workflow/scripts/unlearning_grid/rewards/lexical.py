"""R0-Lex: 1 when a completion holds no forbidden term, else 0 (study, equation 10)."""

from __future__ import annotations

from collections.abc import Sequence

from unlearning_grid.data.matching import TermMatcher
from unlearning_grid.rewards.base import RewardContext, Scores, require


def lexical_reward(hits: Sequence[str]) -> float:
    """R0 of a completion with these distinct hits."""
    return 0.0 if hits else 1.0


def lexical_columns(hits: Sequence[Sequence[str]]) -> dict[str, list]:
    """Columns lexical_hits (distinct terms) and matched_terms (joined by a bar)."""
    return {
        "lexical_hits": [len(found) for found in hits],
        "matched_terms": ["|".join(found) for found in hits],
    }


class LexicalReward:
    """R0-Lex over the hard and soft terms of the target."""

    name = "r0-lex"
    needs = frozenset({"terms"})

    def __init__(self, settings: dict, context: RewardContext) -> None:
        terms = require(self.name, "terms", context.terms)
        self._matcher = TermMatcher(terms, settings.get("convention", "paper"))

    def score(self, prompts: list[str], completions: list[str]) -> Scores:
        """Values in {0, 1}; columns lexical_hits, matched_terms."""
        hits = [self._matcher.hits(text) for text in completions]
        return Scores([lexical_reward(found) for found in hits], lexical_columns(hits))
