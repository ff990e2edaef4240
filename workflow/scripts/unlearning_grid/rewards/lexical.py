"""R0-Lex: 1 when a completion holds no forbidden term, else 0 (study, equation 10)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unlearning_grid.rewards.base import RewardContext, Scores, require

CONVENTIONS = ("paper",)


class TermMatcher:
    """Finds forbidden terms in raw text.

    Convention "paper": each term is taken literally, compared without regard to case, and must
    have no word character right before and right after it. There is no folding of accents, dashes
    or spaces. Terms nested in a longer hit are hits of their own; a term counts once a text.
    """

    def __init__(self, terms: Sequence[str], convention: str = "paper") -> None:
        """Raises ValueError for a blank term or an unknown convention. No terms match nothing."""
        if convention not in CONVENTIONS:
            raise ValueError(f"term convention {convention!r} is unknown; one of {CONVENTIONS}")
        blank = [index for index, term in enumerate(terms) if not term.strip()]
        if blank:
            raise ValueError(f"forbidden terms {blank} (counted from 0) are blank; remove them")
        self.terms = tuple(dict.fromkeys(terms))
        self._each = [(term, _compile(re.escape(term))) for term in self.terms]
        union = "|".join(re.escape(term) for term in self.terms)
        self._any = _compile(f"(?:{union})") if self.terms else None

    def any(self, text: str) -> bool:
        """Whether at least one term occurs (one pass over the text)."""
        return self._any is not None and self._any.search(text) is not None

    def hits(self, text: str) -> list[str]:
        """Distinct terms that occur, in list order."""
        if not self.any(text):
            return []
        return [term for term, pattern in self._each if pattern.search(text)]


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){pattern}(?!\w)", re.IGNORECASE)


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
