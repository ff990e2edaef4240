"""Whether a text leaves English, with py3langid, which ships its model (BSD licence).

The figures behind the choice and the thresholds are in docs/rules-auditor.md;
benchmarks/language.py prints them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

LANGUAGES = (
    *("en", "ar", "de", "es", "fr", "hi", "id", "it", "ja", "ko", "nl", "pl", "pt", "ru", "sv"),
    *("tr", "vi", "zh"),
)
"""English and the languages that policies drift to. With all that the model knows, names in English
prose are taken for a rare language twice as often; a language off the list is still not English."""

WINDOW = 12
"""Words that are looked at together; half as many from one window to the next."""

MIN_LETTERS = 20
"""Of Latin script; with fewer a name ("Jenny von Westphalen") cannot be told from a language."""

MAX_ENGLISH = 0.02
"""Probability of English below which a window is in another language."""

MIN_OTHER_SCRIPT = 0.1
"""Share of letters outside Latin script from which a text mixes languages; a name given in its own
script in brackets has less."""


def language_drift(text: str) -> bool | None:
    """Whether a text mixes English with another language or leaves it; None if it is too short.

    A text without letters is no drift. Letters outside Latin script decide on their own, at any
    length; otherwise some 12 words with at least 20 letters must be unlikely to be English.
    """
    letters = [character for character in text if character.isalpha()]
    if not letters:
        return False
    others = sum(not _is_latin(character) for character in letters)
    if others >= MIN_OTHER_SCRIPT * len(letters):
        return True
    if len(letters) < MIN_LETTERS:
        return None
    return any(english(window) < MAX_ENGLISH for window in windows(text))


def english(text: str) -> float:
    """Probability that a text is English rather than another one of LANGUAGES."""
    return float(dict(_identifier().rank(text))["en"])


def windows(text: str) -> Iterator[str]:
    """Twelve words at a time, each word in two of them, where they hold enough letters."""
    found = text.split()
    step = WINDOW // 2
    for start in range(0, max(1, len(found) - step), step):
        window = " ".join(found[start : start + WINDOW])
        if sum(map(str.isalpha, window)) >= MIN_LETTERS:
            yield window


@lru_cache(maxsize=1)
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages(LANGUAGES)
    return identifier


@lru_cache(maxsize=4096)
def _is_latin(character: str) -> bool:
    return "LATIN" in unicodedata.name(character, "")
