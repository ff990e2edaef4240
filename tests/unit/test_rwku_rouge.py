"""ROUGE-L recall, as defined and as the study's package does: values by hand.

test_rwku_public_packages.py compares both with the packages.
"""

import pytest

from odd_texts import EMPTY, each_odd
from unlearning_grid.rwku.rouge import recall, study_recall


@pytest.mark.parametrize(
    ("answer", "output", "study", "corrected"),
    [
        ("Jeet Kune Do", "Jeet Kune Do", 1.0, 1.0),
        ("Jeet Kune Do", "jeet kune do", 0.0, 1.0),
        ("Jeet Kune Do", "Jeet Keen Do", 2 / 3, 2 / 3),
        ("Jeet Kune Do", "Do Kune Jeet", 1 / 3, 1 / 3),
        ("Kong Fuzi", "Kong, Fuzi", 1 / 2, 1.0),
        ("Petra Kvitová", "Petra Kvitova", 1 / 2, 1 / 2),
        ("Re\u0301my", "R\u00e9my", 0.0, 1.0),
        ("Trier", "\uff34rier", 0.0, 1.0),
        # full stops part sentences, and each of them may add words
        ("George W. Bush", "Bush. George W.", 1.0, 2 / 3),
        ("one two three", "three. two. one", 1.0, 1 / 3),
        ("one two. three", "three two one", 2 / 3, 1 / 3),
        # different words count, not places
        ("New York, New York", "New York", 2 / 3, 1 / 2),
        ("no no no yes", "no", 1 / 2, 1 / 4),
        # an empty word where blanks stand between full stops
        ("U. S", "x. ", 0.0, 0.0),
        ("U. . S", "x. ", 1 / 3, 0.0),
        ("U. ", " ", 1 / 2, 0.0),
    ],
)
def test_recall(answer: str, output: str, study: float, corrected: float) -> None:
    assert study_recall(answer, output) == pytest.approx(study)
    assert recall(answer, output) == pytest.approx(corrected)


@pytest.mark.parametrize(
    ("answer", "output", "chosen"),
    [
        # two subsequences of one word; only with the next sentence does the choice show
        ("a b", "b a", {"b"}),
        ("b a", "a b", {"a"}),
        ("a b c", "c a b", {"a", "b"}),
        ("a b c d", "c d a b", {"c", "d"}),
        ("a b x", "b a y x", {"b", "x"}),
        ("a w b w", "b a w", {"b", "w"}),
    ],
)
def test_the_choice_among_equally_long_subsequences(
    answer: str, output: str, chosen: set[str]
) -> None:
    """A word of the answer adds to the recall in a second sentence unless it was chosen before."""
    words = set(answer.split())
    for word in words:
        both = study_recall(answer, f"{output}. {word}")
        assert both == pytest.approx(len(chosen | {word}) / len(words)), word


@pytest.mark.parametrize(
    ("output", "value"),
    [("", None), (".", None), ("...", None), (" ", 0.0), (" . . ", 0.0), ("\n", 0.0), ("-", 0.0)],
)
def test_where_the_package_raises_there_is_no_number(output: str, value: float | None) -> None:
    assert study_recall("Trier", output) == value
    assert recall("Trier", output) == 0.0


@pytest.mark.parametrize("answer", ["", ".", "..."])
def test_an_empty_answer_has_no_number_in_the_study(answer: str) -> None:
    assert study_recall(answer, "Trier") is None


def test_an_answer_without_words_is_compared_as_it_is() -> None:
    assert recall("! !", "!!") == 1.0
    assert recall("!!", "!") == 0.0
    assert recall("!!", "") == 0.0
    assert recall("", "") == 1.0


@each_odd
def test_odd_outputs(output: str) -> None:
    answer = "zebra crossing"
    assert recall(answer, output) == 0.0
    assert recall(answer, f"Zebra {output}") == 1 / 2
    expected = None if output in ("", ".", "...", "." * 5000) else 0.0
    assert study_recall(answer, output) == expected
    assert study_recall(answer, f"zebra {output}") == 1 / 2
    if output not in EMPTY:
        assert study_recall(output, output) in (None, 1.0)


def test_outputs_beyond_the_packages_recursion_limit() -> None:
    words = [f"w{number}" for number in range(2000)]
    output = " ".join(words)
    assert study_recall(output, output) == 1.0
    assert study_recall("w7 w1999 w1998", output) == pytest.approx(2 / 3)
    assert study_recall("good word of mouth", "word " * 1999 + "mouth") == 1 / 2
    assert study_recall("word " * 2000, "word " * 2000) == 1.0
    assert recall(output, " ".join(reversed(words))) == 1 / 2000
    swapped = " ".join([words[1], words[0], *words[2:]])
    assert study_recall(output, swapped) == recall(output, swapped) == 1999 / 2000
