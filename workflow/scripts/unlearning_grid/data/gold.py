"""What gold answers tell of a target: its open-world knowledge."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from typing import Any

from unlearning_grid.data.knowledge import Knowledge
from unlearning_grid.data.matching import fold

MIN_FACT_CHARS = 4
"""Characters below which a gold answer ("UK", "23") is too common to give anything away."""


def knowledge_of(
    subject: str, aliases: list[str], probes: Iterable[Mapping[str, Any]]
) -> Knowledge:
    """Names and gold answers of RWKU's forget probes, nothing else.

    What it cannot find is no proof of absence.
    """
    gold = [
        {"prompt": row["query"], "answer": str(row["answer"]), "level": str(row["level"])}
        for row in probes
    ]
    return open_knowledge(subject, aliases, gold)


def open_knowledge(
    subject: str, names: Iterable[str], gold: Iterable[Mapping[str, str]]
) -> Knowledge:
    """Names and gold answers, nothing else.  ``gold``: {"prompt", "answer", "level"} of each probe.

    The facts are the distinct answers, up to spelling, that ``no_fact`` has nothing against.
    """
    names, rows = list(names), [dict(row) for row in gold]
    facts: dict[str, str] = {}
    for row in rows:
        if no_fact(row["answer"], [subject, *names]) is None:
            facts.setdefault(fold(row["answer"]), row["answer"].strip())
    return Knowledge(subject, names, list(facts.values()), closed=False, gold=rows)


def no_fact(answer: str, names: Iterable[str]) -> str | None:
    """Why an answer is no fact that gives the target away: "short" or "name"; None if it is one."""
    plain = fold(answer)
    if len(plain.strip(string.punctuation + " ")) < MIN_FACT_CHARS:
        return "short"
    return "name" if plain in {fold(name) for name in names} else None
