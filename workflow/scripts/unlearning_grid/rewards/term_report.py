"""What a list of forbidden terms sees and what it misses, on real texts; no part of any stage.

Two things go wrong with a list. It is blind: most right answers to a probe hold none of its terms.
And it is blunt: ordinary text that nobody wants unlearned holds some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from unlearning_grid.data.matching import CONVENTIONS, TermMatcher, core, fold, same_case

LEAKS, ORDINARY, REFUSALS = "leaks", "ordinary", "refusals"
"""Texts that should hold a term, texts that should not, and refusals."""


@dataclass(frozen=True)
class TextSet:
    """Texts of one kind: a column of an RWKU config."""

    name: str
    config: str
    column: str
    kind: str


SETS = (
    TextSet("forget L1 answers", "forget_level1", "answer", LEAKS),
    TextSet("forget L2 answers", "forget_level2", "answer", LEAKS),
    TextSet("original passages", "train_original_passage", "text", LEAKS),
    TextSet("refusals", "train_refusal_phi3", "output", REFUSALS),
    TextSet("neighbor L1 answers", "neighbor_level1", "answer", ORDINARY),
    TextSet("neighbor L2 answers", "neighbor_level2", "answer", ORDINARY),
    TextSet("fluency instructions", "utility_fluency", "instruction", ORDINARY),
    TextSet("MMLU questions", "utility_general", "question", ORDINARY),
    TextSet("TriviaQA questions", "utility_factuality", "question", ORDINARY),
    TextSet("BBH questions", "utility_reason", "question", ORDINARY),
    TextSet("MIA retain passages", "mia_retain", "text", ORDINARY),
)


@dataclass(frozen=True)
class Target:
    """A target's names and terms, with one matcher a convention."""

    slug: str
    subject: str
    aliases: Sequence[str]
    hard: Sequence[str]
    soft: Sequence[str]

    @property
    def terms(self) -> list[str]:
        """Hard and soft terms."""
        return [*self.hard, *self.soft]

    @cached_property
    def matchers(self) -> dict[str, TermMatcher]:
        """Convention -> matcher of all terms."""
        return {convention: TermMatcher(self.terms, convention) for convention in CONVENTIONS}


def term_rows(target: Target) -> list[dict[str, Any]]:
    """One row a term: what can be said about it without any text.

    never_in_ascii: convention "paper" cannot find it in any ASCII text; edge_punctuation: what
    "folded" looks for differs at the edges; nested_in: longer terms that hold it.
    """
    rows = []
    for term in target.terms:
        alone = TermMatcher([term], "folded")
        longer = [other for other in target.terms if fold(other) != fold(term) and alone.any(other)]
        rows.append(
            {
                "target": target.slug,
                "term": term,
                "division": "hard" if term in target.hard else "soft",
                "never_in_ascii": not same_case(term).isascii(),
                "edge_punctuation": core(term) != fold(term),
                "nested_in": "|".join(longer),
            }
        )
    return rows


def name_rows(target: Target) -> list[dict[str, Any]]:
    """One row a name of the person: which terms a text has that holds this name only.

    The names are the aliases, and first and last word of the subject.
    """
    words = target.subject.split()
    names = dict.fromkeys([*target.aliases, words[0], words[-1]])
    return [
        {
            "target": target.slug,
            "name": name,
            **{c: "|".join(matcher.hits(name)) for c, matcher in target.matchers.items()},
        }
        for name in names
    ]


def set_rows(target: Target, texts: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """One row a set: how many of its texts hold any term, by convention.

    `texts`: name of a TextSet -> its texts for this target.
    """
    return [
        {
            "target": target.slug,
            "set": kind.name,
            "kind": kind.kind,
            "texts": len(texts[kind.name]),
            **{
                convention: sum(matcher.any(text) for text in texts[kind.name])
                for convention, matcher in target.matchers.items()
            },
        }
        for kind in SETS
        if kind.name in texts
    ]


def hit_rows(target: Target, texts: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """One row a set and term found there: texts with it under each convention, and an example.

    folded_only: texts where "folded" finds the term and "paper" does not.
    """
    rows = []
    for kind in (kind for kind in SETS if kind.name in texts):
        found: dict[str, dict[str, Any]] = {}
        for text in texts[kind.name]:
            hits = {name: set(matcher.hits(text)) for name, matcher in target.matchers.items()}
            for term in set().union(*hits.values()):
                start = {"paper": 0, "folded": 0, "folded_only": 0, "example": text[:120]}
                row = found.setdefault(term, start)
                for name in CONVENTIONS:
                    row[name] += term in hits[name]
                row["folded_only"] += term in hits["folded"] - hits["paper"]
        rows += [
            {
                "target": target.slug,
                "set": kind.name,
                "kind": kind.kind,
                "term": term,
                **found[term],
            }
            for term in target.terms
            if term in found
        ]
    return rows


def totals(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `set_rows` summed over targets, in the order of SETS."""
    summed = []
    for kind in SETS:
        part = [row for row in rows if row["set"] == kind.name]
        if part:
            sums = {key: sum(row[key] for row in part) for key in ("texts", *CONVENTIONS)}
            summed.append({"set": kind.name, "kind": kind.kind, **sums})
    return summed


def collect(
    targets: Sequence[Target], read: Callable[[TextSet, str], Sequence[str]]
) -> dict[str, list[dict[str, Any]]]:
    """All tables over several targets: terms, names, sets, hits.

    `read`: texts of a set for a subject.
    """
    tables: dict[str, list[dict[str, Any]]] = {"terms": [], "names": [], "sets": [], "hits": []}
    for target in targets:
        texts = {kind.name: read(kind, target.subject) for kind in SETS}
        texts = {name: found for name, found in texts.items() if found}
        tables["terms"] += term_rows(target)
        tables["names"] += name_rows(target)
        tables["sets"] += set_rows(target, texts)
        tables["hits"] += hit_rows(target, texts)
    return tables
