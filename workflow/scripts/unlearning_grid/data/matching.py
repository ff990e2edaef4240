"""Terms in text: how two spellings count as the same, and where a term stands.

All terms are searched in one pass (Aho and Corasick 1975, package pyahocorasick), about a hundred
times as fast as one pattern a term.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

CONVENTIONS = ("paper", "folded")

_PLAIN = dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
_PLAIN |= dict.fromkeys("\u2018\u2019", "'")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_LETTERS = re.compile(r"[^\W\d_]+")


def fold(text: str) -> str:
    """Case-folded text without accents, dashes as "-", quotes as "'", single spaces."""
    if not text.isascii():
        # Compatibility forms first: a narrow or hard space becomes a space, a ligature its letters.
        text = _NOT_ASCII.sub(_plain, unicodedata.normalize("NFKD", text))
    if "  " in text or not text.isprintable():  # of all blanks only the space is printable
        text = " ".join(text.split())
    return text.strip().casefold()


def _plain(run: re.Match[str]) -> str:
    return "".join(_PLAIN.get(c, c) for c in run[0] if not unicodedata.combining(c))


def words(text: str) -> list[str]:
    """Letter runs of the folded text."""
    return _LETTERS.findall(fold(text))


class TermMatcher:
    """Finds terms that stand as whole words: no word character right before and right after.

    Convention "paper": each term is literal and compared without regard to case, in the raw text,
    exactly as `re.compile(rf"(?<!\\w){re.escape(term)}(?!\\w)", re.IGNORECASE)` does.  No accent,
    dash or space is folded; a term inside a longer one is a hit of its own.

    Convention "folded": text and terms go through `fold`, and punctuation at the edges of a term is
    dropped ("Love?" is found in "love").  A hit that lies inside a longer hit is none of its own;
    the same term alone elsewhere is.  Of terms with one folded form the first listed is reported.

    Occurrences of one term do not overlap and are taken from the left, as `re.findall` does.
    """

    def __init__(self, terms: Sequence[str], convention: str = "paper") -> None:
        """Raises ValueError for an unknown convention, a blank term, and a folded term of
        punctuation only.  No terms match nothing."""
        if convention not in CONVENTIONS:
            raise ValueError(f"term convention {convention!r} is unknown; one of {CONVENTIONS}")
        blank = [index for index, term in enumerate(terms) if not term.strip()]
        if blank:
            raise ValueError(f"forbidden terms {blank} (counted from 0) are blank; remove them")
        self.terms = tuple(dict.fromkeys(terms))
        self.convention = convention
        self._folded = convention == "folded"
        self._reduce: Callable[[str], str] = fold if self._folded else same_case
        keys: dict[str, list[int]] = {}
        for index, term in enumerate(self.terms):
            key = core(term) if self._folded else same_case(term)
            keys.setdefault(key, []).append(index)
        if self._folded:
            keys = {key: indices[:1] for key, indices in keys.items()}
        self._automaton = _automaton(keys) if keys else None

    def any(self, text: str) -> bool:
        """Whether at least one term occurs; stops at the first."""
        return next(self._whole_words(text), None) is not None

    def hits(self, text: str) -> list[str]:
        """Distinct terms that occur, in list order."""
        return list(self.counts(text))

    def counts(self, text: str) -> dict[str, int]:
        """Occurrences of each term that occurs, in list order."""
        found = self._occurrences(text)
        if not found:
            return {}
        counts = Counter(index for _, _, index in found)
        return {self.terms[index]: counts[index] for index in sorted(counts)}

    def places(self, text: str) -> list[str]:
        """The term at each place of the text where one stands, in order of the text.

        Places do not overlap: the leftmost is taken, of those the longest, as `re.findall` does
        with one pattern of all terms, longest first.
        """
        free = 0
        found = []
        for start, end, index in sorted(self._whole_words(text), key=_leftmost):
            if start >= free:
                free = end
                found.append(self.terms[index])
        return found

    def spans(self, text: str) -> list[tuple[int, int, str]]:
        """(start, end, term) of every occurrence in the raw text, by start, longest first.

        Occurrences of different terms may overlap.  Convention "paper" only: folding moves
        positions.
        """
        if self._folded:
            raise ValueError("the folded convention has no positions in the raw text")
        found = sorted(self._occurrences(text), key=_leftmost)
        return [(start, end, self.terms[index]) for start, end, index in found]

    def _occurrences(self, text: str) -> list[tuple[int, int, int]]:
        """(start, end, index of the term) by end, those of one term not overlapping."""
        hits = list(self._whole_words(text))
        if self._folded and len(hits) > 1:
            hits = _outermost(hits)
        free: dict[int, int] = {}
        found = []
        for start, end, index in hits:
            if start >= free.get(index, 0):
                free[index] = end
                found.append((start, end, index))
        return found

    def _whole_words(self, text: str) -> Iterator[tuple[int, int, int]]:
        """(start, end, index of the term) of whole-word hits, overlapping ones too, by end."""
        if self._automaton is None:
            return
        reduced = self._reduce(text)
        if self._folded:
            text = reduced
        # Else the neighbours are those of the raw text: one case of a character may be a word
        # character and another not (the iota is, the iota subscript is a mark).
        size = len(text)
        for last, (length, indices) in self._automaton.iter(reduced):
            end = last + 1
            start = end - length
            if start and _is_word(text[start - 1]):
                continue
            if end < size and _is_word(text[end]):
                continue
            for index in indices:
                yield start, end, index


def same_case(text: str) -> str:
    """Text in one case, one character for one, so that positions stay.

    Two characters become equal exactly where `re.IGNORECASE` takes them for equal: the long s is
    an s, the Kelvin sign a k, both dotted capital I and dotless i an i, the micro sign a mu.
    """
    # The dotted capital I is the one character whose lower case is two; `re` takes the first.
    text = text.replace("\u0130", "i").lower()
    if text.isascii():
        return text
    pattern, table = _same_upper_case()
    return text.translate(table) if pattern.search(text) else text


@lru_cache(maxsize=1)
def _same_upper_case() -> tuple[re.Pattern[str], dict[int, str]]:
    """Lower-case characters that share their upper case with another one -> that one.

    From this Python's own character tables, as those of `re` are; above U+1FFFF nothing has case.
    """
    groups: dict[str, list[str]] = {}
    for character in map(chr, range(0x20000)):
        if character.upper() != character and character.lower() == character:
            groups.setdefault(character.upper(), []).append(character)
    table = {ord(c): group[0] for group in groups.values() for c in group[1:]}
    return re.compile("[" + "".join(map(chr, table)) + "]"), table


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def core(term: str) -> str:
    """A term folded, without punctuation at its edges. Raises ValueError if nothing is left."""
    key = fold(term)
    start, end = 0, len(key)
    while start < end and _is_edge(key[start]):
        start += 1
    while start < end and _is_edge(key[end - 1]):
        end -= 1
    if start == end:
        raise ValueError(f"forbidden term {term!r} is only punctuation when folded; remove it")
    return key[start:end]


def _is_edge(character: str) -> bool:
    punctuation = unicodedata.category(character).startswith("P") and character != "_"
    return punctuation or character.isspace()


def _automaton(keys: dict[str, list[int]]) -> Any:
    import ahocorasick

    automaton = ahocorasick.Automaton()
    for key, indices in keys.items():
        automaton.add_word(key, (len(key), tuple(indices)))
    automaton.make_automaton()
    return automaton


def _leftmost(hit: tuple[int, int, int]) -> tuple[int, int, int]:
    return hit[0], -hit[1], hit[2]


def _outermost(found: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Hits that lie inside no longer hit."""
    kept = []
    reach = -1  # of hits that start before this one, or with it and are longer
    for hit in sorted(found, key=_leftmost):
        if hit[1] > reach:
            kept.append(hit)
            reach = hit[1]
    return kept
