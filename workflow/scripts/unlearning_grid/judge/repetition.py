"""Text that repeats itself, as a policy writes it once its reward no longer holds it.

Independent of who judges: four measures of one text, with thresholds that ordinary prose stays far
away from (docs/rules-auditor.md has the figures).
"""

from __future__ import annotations

import re

from unlearning_grid.data.matching import fold, words

WORDS_WINDOW = 20
MIN_DISTINCT = 0.3
"""Distinct words among 20 in a row: at least 0.50 in prose, 0.40 in mathematics, 0.25 or less in a
loop of five words."""

GRAMS_WINDOW = 40
GRAM = 4
MAX_REPEATED = 0.5
"""Share of four-word runs said before within 40 words: a sentence of 12 words said three times has
more."""

REPEATS = 5
_UNIT = re.compile(rf"(.{{2,60}}?)\1{{{REPEATS - 1}}}")
_LETTERS = re.compile(r"([^\W\d_])\1{7}")
_SIGNS = re.compile(r"([^\w\s\-=*#.~|])\1{11}")
"""Rules and leaders of Markdown tables and headings are no loop."""


def degenerate(text: str) -> bool:
    """Whether a text says nothing or loops.

    True for a text without letters and digits; for one with fewer than 30 % distinct words among
    any 20 in a row; more than half of the four-word runs repeated among any 40 words; a stretch of
    up to 60 characters five times on end; one letter eight times or another sign twelve times.
    """
    if not any(character.isalnum() for character in text):
        return True
    found = words(text)
    return few_words(found) or repeated_runs(found) or repeated_stretch(text)


def few_words(found: list[str]) -> bool:
    """Whether some 20 words in a row hold fewer than 30 % distinct ones."""
    limit = MIN_DISTINCT * WORDS_WINDOW
    starts = range(0, len(found) - WORDS_WINDOW + 1, WORDS_WINDOW // 4)
    return any(len(set(found[start : start + WORDS_WINDOW])) < limit for start in starts)


def repeated_runs(found: list[str]) -> bool:
    """Whether more than half of the four-word runs within some 40 words were said before."""
    grams = list(zip(*(found[i:] for i in range(GRAM)), strict=False))
    size = GRAMS_WINDOW - GRAM + 1
    for start in range(0, max(1, len(grams) - size + 1), size // 4):
        part = grams[start : start + size]
        if len(part) > 2 * GRAM and len(set(part)) < (1 - MAX_REPEATED) * len(part):
            return True
    return False


def repeated_stretch(text: str) -> bool:
    """Whether a stretch of characters, a letter or a sign comes many times on end."""
    if _LETTERS.search(text) or _SIGNS.search(text):
        return True
    stretches = _UNIT.finditer(fold(text) + " ")
    return any(any(c.isalpha() for c in match[1]) for match in stretches)
