"""Scores against public packages: rouge, rouge-score, NLTK, torchmetrics, SciPy."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge import Rouge
from rouge_score.rouge_scorer import RougeScorer

from odd_texts import ODD
from real_rows import RWKU_DIR, needs_rwku
from unlearning_grid.data.rwku import read_jsonl
from unlearning_grid.rwku.fluency import entropy, word_tokens
from unlearning_grid.rwku.membership import separation
from unlearning_grid.rwku.rouge import recall, study_recall
from unlearning_grid.rwku.text import study_exact_match, study_f1, words

PROBES = ["forget_level1", "forget_level2", "forget_level3", "neighbor_level1", "neighbor_level2"]
ROUGE = Rouge()


class OurWords:
    def tokenize(self, text: str) -> list[str]:
        return words(text)


def package_recall(answer: str, output: str) -> float | None:
    try:
        scores: Any = ROUGE.get_scores(hyps=[output], refs=[answer])
        return scores[0]["rouge-l"]["r"]
    except ValueError:  # "Hypothesis is empty."
        return None


@cache
def real_pairs() -> list[tuple[str, str]]:
    """Answers of all probes of the ten targets, with outputs of six kinds: 7,584 pairs."""
    rows = [row for name in PROBES for row in read_jsonl(RWKU_DIR / f"{name}.jsonl")]
    answers = [row["answer"] for row in rows]
    outputs = [
        answers,
        answers[1:] + answers[:1],
        [answer.lower() for answer in answers],
        [f"It is called {answer}. Mr. X. said so, of {answer.split()[-1]}" for answer in answers],
        [row["query"] for row in rows],
        [f"{row['query']} {' '.join(reversed(row['answer'].split()))}." for row in rows],
    ]
    return [pair for kind in outputs for pair in zip(answers, kind, strict=True)]


@needs_rwku
def test_study_recall_is_that_of_the_rouge_package_on_real_pairs() -> None:
    pairs = real_pairs()
    assert len(pairs) == 6 * 1264
    differing = [pair for pair in pairs if study_recall(*pair) != package_recall(*pair)]
    assert differing == []


PIECES = st.sampled_from(["a", "b", "B", "c", ".", ". ", "d.", "\n"])
WORD_SALAD = st.lists(PIECES, max_size=14).map(" ".join)
LETTERS = st.text("abA. \n\u00e9", max_size=20)


@settings(max_examples=400)
@given(answer=WORD_SALAD | LETTERS, output=WORD_SALAD | LETTERS)
def test_study_recall_is_that_of_the_rouge_package_on_any_text(answer: str, output: str) -> None:
    assert study_recall(answer, output) == package_recall(answer, output)


def test_study_recall_is_that_of_the_rouge_package_on_odd_texts() -> None:
    short = [text for text in ODD if len(text.split()) < 500]
    for text in short:
        for answer in ("Trier", "the answer is", "A word. Re\u0301my"):
            assert study_recall(answer, text) == package_recall(answer, text), text


def test_study_recall_has_a_value_where_the_package_has_none() -> None:
    answer = " ".join(f"w{number}" for number in range(1100))
    with pytest.raises(RecursionError):
        package_recall(answer, answer)
    assert study_recall(answer, answer) == 1.0


@needs_rwku
def test_recall_is_that_of_rouge_score_on_real_pairs() -> None:
    scorer = RougeScorer(["rougeL"], tokenizer=OurWords())
    for answer, output in real_pairs():
        assert recall(answer, output) == scorer.score(answer, output)["rougeL"].recall


@pytest.mark.parametrize(
    ("answer", "output", "rouge", "rouge_score", "ours"),
    [
        ("Jeet Kune Do", "jeet kune do", 0.0, 1.0, 1.0),
        ("Jeet Kune Do", "Jeet Keen Do", 2 / 3, 2 / 3, 2 / 3),
        ("Kong Fuzi", "Kong, Fuzi", 1 / 2, 1.0, 1.0),
        ("Petra Kvitová", "Petra Kvitova", 1 / 2, 1 / 2, 1 / 2),
        ("Petra Kvitová", "Das war petra kvitová!", 0.0, 1.0, 1.0),
        ("Belle Époque", "la Belle Epoque", 1 / 2, 1 / 2, 1 / 2),
        ("Guadalupe Rodríguez", "Se llama Rodrigues", 0.0, 0.0, 0.0),
        ("Guadalupe Rodríguez", "una guez", 0.0, 1 / 3, 0.0),  # it takes "Rodríguez" for two words
        ("Saint-Rémy-de-Provence", "Saint-Rémy de Provence", 0.0, 1.0, 1.0),
        ("孔丘", "孔丘", 1.0, 0.0, 1.0),  # no ASCII letter
        ("New York, New York", "New York", 2 / 3, 1 / 2, 1 / 2),
        ("George W. Bush", "Bush. George W.", 1.0, 2 / 3, 2 / 3),
        ("Trier", "...", None, 0.0, 0.0),
    ],
)
def test_where_the_packages_and_we_differ(
    answer: str, output: str, rouge: float | None, rouge_score: float, ours: float
) -> None:
    default = RougeScorer(["rougeL"]).score(answer, output)["rougeL"].recall
    assert package_recall(answer, output) == study_recall(answer, output) == pytest.approx(rouge)
    assert default == pytest.approx(rouge_score)
    assert recall(answer, output) == pytest.approx(ours)


@needs_rwku
def test_entropy_is_that_of_nltks_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens by nltk.word_tokenize itself, from a data folder with the same parameters."""
    import nltk
    from nltk.tokenize import _get_punkt_tokenizer
    from nltk.tokenize.punkt import save_punkt_params

    from unlearning_grid.rwku import fluency

    folder = tmp_path / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    save_punkt_params(fluency._tokenizers()[0]._params, dir=str(folder))
    _get_punkt_tokenizer.cache_clear()
    rows = list(read_jsonl(RWKU_DIR / "utility_fluency.jsonl"))
    texts = [row["instruction"] for row in rows] + ODD
    for text in texts:
        tokens = nltk.word_tokenize(text)
        assert tokens == word_tokens(text)
        assert entropy(text) == pytest.approx(nltk_entropy(tokens), abs=1e-9)
    _get_punkt_tokenizer.cache_clear()


def nltk_entropy(tokens: list[str]) -> float:
    import math

    from nltk import FreqDist, ngrams

    bits = []
    for n in (2, 3):
        counts = FreqDist(ngrams(tokens, n))
        bits.append(-sum(counts.freq(gram) * math.log2(counts.freq(gram)) for gram in counts))
    return (2 / 3 * bits[0] + 4 / 3 * bits[1]) / 2


@needs_rwku
def test_exact_match_and_f1_are_those_of_squad() -> None:
    from torchmetrics.functional.text import squad

    rows: list[dict[str, Any]] = list(read_jsonl(RWKU_DIR / "utility_factuality.jsonl"))[::5]
    for row in rows:
        answers = row["answers"]
        for output in (answers[-1], f"The answer's {answers[0]}!", row["question"], "", "the"):
            expected = squad(
                [{"prediction_text": output, "id": "1"}],
                [{"answers": {"answer_start": [0] * len(answers), "text": answers}, "id": "1"}],
            )
            assert 100 * study_f1(output, answers) == pytest.approx(float(expected["f1"]), abs=1e-4)
            assert 100 * study_exact_match(output, answers) == float(expected["exact_match"])


@given(
    forget=st.lists(st.integers(-5, 5), min_size=1, max_size=20),
    retain=st.lists(st.integers(-5, 5), min_size=1, max_size=20),
)
def test_separation_is_mann_whitneys(forget: list[int], retain: list[int]) -> None:
    from scipy.stats import mannwhitneyu

    u = mannwhitneyu(forget, retain, method="exact").statistic
    expected = u / (len(forget) * len(retain))
    assert separation(forget, retain) == pytest.approx(expected)
