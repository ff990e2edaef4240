"""N-gram entropy: values by hand, real texts, and what the splitting of sentences is worth."""

import hashlib
from collections.abc import Callable

import pytest

from odd_texts import each_empty, each_odd
from real_rows import RWKU_DIR, needs_rwku
from unlearning_grid.data.rwku import read_jsonl
from unlearning_grid.rwku import fluency
from unlearning_grid.rwku.fluency import entropy, word_tokens


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("", 0.0),
        ("word", 0.0),
        ("two words", 0.0),  # one pair, no triple
        ("three other words", 1 / 3),  # pairs 1 bit, triples 0
        ("a b c d", (2 / 3 * 1.5849625 + 4 / 3 * 1) / 2),  # three pairs, two triples
        ("the cat the cat the", (2 / 3 * 1 + 4 / 3 * 0.9182958) / 2),  # 2 + 2 pairs, 2 + 1 triples
        ("no " * 2000, 0.0),
        ("a b c d e f g h i", (2 / 3 * 3 + 4 / 3 * 2.8073549) / 2),  # eight pairs, seven triples
    ],
)
def test_entropy(text: str, bits: float) -> None:
    assert entropy(text) == pytest.approx(bits, abs=1e-7)


def test_tokens_are_those_of_nltk() -> None:
    """The full stop of an abbreviation stays, that of a sentence parts; case counts."""
    assert word_tokens("Dr. No can't go. He's ill.") == (
        ["Dr.", "No", "ca", "n't", "go", ".", "He", "'s", "ill", "."]
    )
    assert word_tokens('Say "x"...') == ["Say", "``", "x", "''", "..."]
    assert word_tokens("孔丘 是。") == ["孔丘", "是。"]
    assert entropy("go Go go Go go") > entropy("go go go go go") == 0


@each_empty
def test_an_output_without_text_has_none(output: str) -> None:
    assert entropy(output) == 0.0


@each_odd
def test_odd_outputs(output: str) -> None:
    """A text twice, as two paragraphs, has few new pairs and triples, so hardly more bits."""
    once = entropy(output)
    assert 0 <= once < 15
    assert once - 1e-9 <= entropy(f"{output}\n\n{output}") < once + 2


def test_long_texts_without_repetition() -> None:
    words = " ".join(f"w{number}" for number in range(2000))
    assert entropy(words) == pytest.approx((2 / 3 * 10.965063 + 4 / 3 * 10.964341) / 2, abs=1e-5)


def test_the_trained_parameters_are_nltks() -> None:
    """Digest of the English tables of NLTK's `punkt_tab` data (as llama-index-core ships them)."""
    model = fluency._tokenizers()[0]._params
    sets = [sorted(found) for found in (model.abbrev_types, model.collocations)]
    contexts = sorted(item for item in model.ortho_context.items() if item[1])  # looking up adds 0
    tables = [*sets, sorted(model.sent_starters), contexts]
    digest = hashlib.sha256(repr(tables).encode()).hexdigest()
    assert digest == "1382107bd665caa2be62ed66f1fd1c89e10d565ee3b4a8b3b4db159b42c6bc5e"


def untrained(text: str) -> list[str]:
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    split = NLTKWordTokenizer().tokenize
    return [token for part in PunktSentenceTokenizer().tokenize(text) for token in split(part)]


def one_sentence(text: str) -> list[str]:
    from nltk.tokenize import NLTKWordTokenizer

    return NLTKWordTokenizer().tokenize(text)


@needs_rwku
@pytest.mark.parametrize(
    ("config", "column", "mean", "others"),
    [
        ("utility_fluency", "instruction", 4.335154, {untrained: 4, one_sentence: 249}),
        ("train_original_passage", "text", 5.390343, {untrained: 60, one_sentence: 769}),
    ],
)
def test_real_texts(
    config: str, column: str, mean: float, others: dict[Callable[[str], list[str]], int]
) -> None:
    """Mean bits, and of how many texts the two ways without trained parameters change tokens."""
    texts = [row[column] for row in read_jsonl(RWKU_DIR / f"{config}.jsonl")]
    assert sum(map(entropy, texts)) / len(texts) == pytest.approx(mean, abs=1e-6)
    tokens = [word_tokens(text) for text in texts]
    for other, changed in others.items():
        found = [other(text) for text in texts]
        assert sum(a != b for a, b in zip(tokens, found, strict=True)) == changed, other
