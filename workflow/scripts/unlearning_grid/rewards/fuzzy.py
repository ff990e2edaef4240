"""R3-Fuzzy: hard terms in near spellings, discounted by length; not in the paper.

The formula is that of the study's repository (rubenbalbastre/grpo-llm-unlearning):
exp(-30 * hits / max(words, 50)), with word-bounded exact search on simplified text, and where a
term is not found so, one hit if RapidFuzz's partial ratio on text without spaces is at least 85 and
the term has at least four characters there.  Exact occurrences count each, of every term by itself.
The partial ratio slides the shorter of the two strings along the longer one, so a completion
shorter than a term and contained in it ("arl" in "Karl Marx") is a hit, as there.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

from unlearning_grid.data.matching import TermMatcher
from unlearning_grid.rewards.base import RewardContext, Scores, require

MIN_FUZZY_CHARACTERS = 4

_OTHER = re.compile(r"[^a-z0-9]+")
_WORD = re.compile(r"\w+")


def simplify(text: str) -> str:
    """Text casefolded, without accents, its letters a to z and digits kept, the rest one space."""
    text = text.casefold()
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
        text = "".join(c for c in text if not unicodedata.combining(c))
    return _OTHER.sub(" ", text).strip()


def fuzzy_reward(hits: int, words: int, scale: float = 30.0, min_words: int = 50) -> float:
    """exp(-scale * hits / max(words, min_words))."""
    return math.exp(-scale * hits / max(words, min_words))


class FuzzyReward:
    """R3-Fuzzy over the hard terms of the target."""

    name = "r3-fuzzy"
    needs = frozenset({"hard_terms"})

    def __init__(self, settings: dict, context: RewardContext) -> None:
        """A term without a letter a to z or a digit is never found, as in the source."""
        terms = dict.fromkeys(require(self.name, "hard_terms", context.hard_terms))
        self._threshold = float(settings.get("threshold", 85))
        self._scale = float(settings.get("scale", 30))
        self._min_words = int(settings.get("min_words", 50))
        # (term, simplified, without spaces)
        simple = [(term, simplify(term)) for term in terms]
        self._terms = [(term, form, form.replace(" ", "")) for term, form in simple if form]
        self._exact = TermMatcher([form for _, form, _ in self._terms])

    def score(self, prompts: list[str], completions: list[str]) -> Scores:
        """Values in (0, 1]; columns fuzzy_hits, words (runs of word characters), matched_terms
        (joined by a bar, a term as often as it counts)."""
        hits = [self._hits(text) for text in completions]
        words = [len(_WORD.findall(text)) for text in completions]
        values: list[float | None] = [
            fuzzy_reward(len(found), n, self._scale, self._min_words)
            for found, n in zip(hits, words, strict=True)
        ]
        columns = {
            "fuzzy_hits": [len(found) for found in hits],
            "words": words,
            "matched_terms": ["|".join(found) for found in hits],
        }
        return Scores(values, columns)

    def _hits(self, text: str) -> Sequence[str]:
        from rapidfuzz.fuzz import partial_ratio

        simple = simplify(text)
        compact = simple.replace(" ", "")
        exact = self._exact.counts(simple)
        found: list[str] = []
        for term, form, letters in self._terms:
            if form in exact:
                found += [term] * exact[form]
            elif len(letters) >= MIN_FUZZY_CHARACTERS and compact:
                score = partial_ratio(letters, compact, score_cutoff=self._threshold)
                if score >= self._threshold:
                    found.append(term)
        return found
