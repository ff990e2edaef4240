"""Lexical rewards against the obvious loop of compiled patterns, in one run.

    PYTHONPATH=workflow/scripts .venv/bin/python benchmarks/rewards.py [completions]

Scores 10,000 completions of about 256 tokens (190 words) with the 60 terms of one target; the loop
does a tenth of them. Both must give the same values. Prints milliseconds per 1,000 completions,
the ratio, and the machine.
"""

import math
import os
import platform
import random
import re
import sys
import time
from collections.abc import Callable

import yaml

from unlearning_grid.config import ROOT
from unlearning_grid.data.matching import core, fold
from unlearning_grid.rewards import registry
from unlearning_grid.rewards.base import RewardContext
from unlearning_grid.rewards.fuzzy import fuzzy_reward, simplify

TARGET = "karl-marx"
WORDS = 190
SHARE_OF_LOOP = 10
VOCABULARY = """
the of and to in is that for it as was with be by on not he his but at are this have from or had
an they which one you were all her she there would their we him been has when who will no more
if out so up said what its about than into them can only other time new some could these two may
first then do any like my now over such our man me even most made after also did many off before
must well back through years where much your way down should because long each just state those
people too mister little good world make very year still see work life get here between both
under being never day same another know while last might great old come since against go came
right used take three history economy society theory industry class children question government
public system general order though learning different important countries century political
philosophy English revolution Berlin workers
"""


class NoRefusal:
    """A detector that costs nothing, so that R1 measures the lexical part."""

    def probabilities(self, texts: list[str]) -> list[float]:
        return [0.0] * len(texts)


def completions(number: int, terms: list[str], seed: int = 0) -> list[str]:
    """Sentences of common words; every fourth text holds a term, every third curly quotes."""
    rng = random.Random(seed)
    texts = []
    for index in range(number):
        words: list[str] = rng.choices(VOCABULARY.split(), k=WORDS)
        for end in range(12, WORDS, 12):
            words[end] = words[end].capitalize()
            words[end - 1] += "."
        if index % 4 == 0:
            words[rng.randrange(WORDS)] = rng.choice(terms)
        if index % 3 == 0:
            words[rng.randrange(WORDS)] += "\u2019s"
        texts.append(" ".join(words))
    return texts


def loops(
    terms: list[str], hard: list[str], weights: dict[str, float]
) -> dict[tuple[str, str], Callable[[str], float]]:
    """Each reward as one would write it first: (reward, convention) -> value of one text."""
    from rapidfuzz.fuzz import partial_ratio

    patterns = {t: _pattern(re.escape(t), re.IGNORECASE) for t in terms}
    folded = {t: _pattern(re.escape(core(t)), 0) for t in terms}
    simple = [(simplify(t).replace(" ", ""), _pattern(simplify(t), 0)) for t in hard]
    longest = sorted(terms, key=len, reverse=True)
    union = _pattern("(?:" + "|".join(map(re.escape, longest)) + ")", re.IGNORECASE)

    def binary(text: str) -> float:
        return float(not [t for t, p in patterns.items() if p.search(text)])

    def binary_folded(text: str) -> float:
        plain = fold(text)
        return float(not [t for t, p in folded.items() if p.search(plain)])

    def weighted(text: str) -> float:
        counts = {t: len(p.findall(text)) for t, p in patterns.items()}
        return math.exp(-sum(weights[t] * min(n, 3) for t, n in counts.items()))

    def fuzzy(text: str) -> float:
        plain = simplify(text)
        compact = plain.replace(" ", "")
        hits = [
            len(p.findall(plain)) or int(partial_ratio(letters, compact) >= 85)
            for letters, p in simple
        ]
        return fuzzy_reward(sum(hits), len(re.findall(r"\w+", text)))

    return {
        ("r0-lex", "paper"): binary,
        ("r0-lex", "folded"): binary_folded,
        ("r1-antirefusal", "paper"): binary,
        ("pagerank-lex", "paper"): weighted,
        # these two have no loop over terms to save: one alternation, and few hard terms
        ("exp-lex", "paper"): lambda text: math.exp(-len(union.findall(text))),
        ("r3-fuzzy", ""): fuzzy,
    }


def _pattern(body: str, flags: int) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){body}(?!\w)", flags)


def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    path = ROOT / "resources" / "forbidden_terms.yaml"
    lists = yaml.safe_load(path.read_text(encoding="utf-8"))[TARGET]
    hard, terms = lists["hard"], lists["hard"] + lists["soft"]
    weights = {term: 1 / (1 + place) for place, term in enumerate(terms)}
    context = RewardContext(
        TARGET, terms=terms, hard_terms=hard, term_weights=weights, detector=NoRefusal()
    )
    texts = completions(number, terms)
    few = texts[::SHARE_OF_LOOP]
    print(f"{number} completions of {WORDS} words, {len(terms)} terms; ms per 1,000 completions")
    for (name, convention), value in loops(terms, hard, weights).items():
        reward = registry.load(name)({"convention": convention} if convention else {}, context)
        reward.score([""], ["warm"])
        start = time.perf_counter()
        values = reward.score([""] * number, texts).values
        ours = (time.perf_counter() - start) / number
        start = time.perf_counter()
        expected = [value(text) for text in few]
        loop = (time.perf_counter() - start) / len(few)
        pairs = zip(values[::SHARE_OF_LOOP], expected, strict=True)
        assert all(v is not None and math.isclose(v, e) for v, e in pairs), name
        shown = f"{name} {convention}".strip()
        print(f"{shown:22} {ours * 1e6:7.1f}   loop {loop * 1e6:8.1f}   ratio {loop / ours:6.1f}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{platform.machine()}, {cores} cores, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
