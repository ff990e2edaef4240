"""Words, lines, exact match and token F1: values by hand, real aliases, texts of a broken model."""

import pytest

from odd_texts import each_empty, each_odd
from real_rows import RWKU_DIR, needs_rwku
from unlearning_grid.data.rwku import read_jsonl
from unlearning_grid.rwku import text

BOTH_EXACT = [text.exact_match, text.study_exact_match]
BOTH_F1 = [text.f1, text.study_f1]


def test_the_first_line_with_text() -> None:
    assert text.first_line("  \n\n a b \n c") == "a b"
    assert text.first_line("") == ""


def test_the_study_cuts_at_the_first_newline_even_a_leading_one() -> None:
    assert text.study_line(" a b \n c") == "a b"
    assert text.study_line("\n Trier") == ""
    assert text.study_line("Trier\r\nBerlin") == "Trier"
    assert text.study_line("") == ""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("Jeet Kune-Do!", ["jeet", "kune", "do"]),
        ("Re\u0301my", ["r\u00e9my"]),
        ("\uff34\uff52\uff49\uff45\uff52 \uff11\uff12", ["trier", "12"]),
        ("Straße", ["strasse"]),
        ("孔丘。", ["孔丘"]),
        ("snake_case", ["snake_case"]),
        ("\U0001f600 ...", []),
    ],
)
def test_words(given: str, expected: list[str]) -> None:
    assert text.words(given) == expected


@pytest.mark.parametrize(
    ("given", "study", "corrected"),
    [
        ("The  O'Clock, an hour.", ["oclock", "hour"], ["o", "clock", "hour"]),
        ("A-Team", ["ateam"], ["team"]),
        ("Anne and the a", ["anne", "and"], ["anne", "and"]),
        ("The The", [], ["the", "the"]),  # a band
        ("(A)", [], ["a"]),
        ("] )", [], []),
        ("\u201cTrier\u201d", ["\u201ctrier\u201d"], ["trier"]),  # only ASCII signs are deleted
        ("\uff34rier", ["\uff54rier"], ["trier"]),
        ("étude à the", ["étude", "à"], ["étude", "à"]),
    ],
)
def test_normalisations(given: str, study: list[str], corrected: list[str]) -> None:
    assert text.study_tokens(given) == study
    assert text.tokens(given) == corrected


@pytest.mark.parametrize(
    ("output", "answers", "study", "corrected"),
    [
        ("the Caracas.", ["Bogota", "caracas"], True, True),
        ("Caracas, Venezuela", ["Caracas"], False, False),
        ("Caracas, Venezuela", ["Caracas", "Caracas Venezuela"], True, True),
        ("", ["Caracas"], False, False),
        ("", ["@"], True, False),
        ("@", ["@"], True, True),
        ("#", ["@"], True, False),
        ("\uff20", ["@"], False, True),
        ("the", ["@"], True, False),
        ("The The", ["The Who"], False, False),
        ("The The", ["The The"], True, True),
        ("An", ["The The"], True, False),
        ("\U0001f981 \U0001f34d", ["\U0001f981\U0001f34d"], False, True),
        ("3 2 1", ["3-2-1"], False, True),
    ],
)
def test_exact_match(output: str, answers: list[str], study: bool, corrected: bool) -> None:
    assert text.study_exact_match(output, answers) is study
    assert text.exact_match(output, answers) is corrected


@pytest.mark.parametrize(
    ("output", "answers", "study", "corrected"),
    [
        ("the city of Caracas", ["Caracas"], 1 / 2, 1 / 2),  # P 1/3, R 1
        ("the city of Caracas", ["Bogota", "Caracas", "City of Caracas"], 1.0, 1.0),
        ("New York", ["New York New York"], 2 / 3, 2 / 3),  # repeats count
        ("york york york", ["New York"], 2 / 5, 2 / 5),
        ("It is 3-2-1", ["3-2-1"], 1 / 2, 3 / 4),
        ("Bogota", ["Caracas"], 0.0, 0.0),
        ("", ["Caracas"], 0.0, 0.0),
        ("", ["the"], 1.0, 0.0),
        ("x", ["the"], 0.0, 0.0),
        ("...", ["@"], 1.0, 0.0),
        ("@ @", ["@@"], 1.0, 1.0),
        ("it is \U0001f5fe", ["\U0001f5fe"], 1 / 2, 0.0),
    ],
)
def test_f1(output: str, answers: list[str], study: float, corrected: float) -> None:
    assert text.study_f1(output, answers) == pytest.approx(study)
    assert text.f1(output, answers) == pytest.approx(corrected)


@pytest.mark.parametrize("score", [*BOTH_EXACT, *BOTH_F1])
def test_no_answers_at_all(score) -> None:
    with pytest.raises(ValueError, match="no answer"):
        score("Caracas", [])


@each_empty
def test_an_output_without_text_is_never_right(output: str) -> None:
    answers = ["Caracas", "The The", "@", "!", " ", ""]
    assert text.exact_match(output, answers) is False
    assert text.f1(output, answers) == 0.0


@each_odd
def test_odd_outputs(output: str) -> None:
    assert "\n" not in text.first_line(output)
    assert text.study_line(output) == output.split("\n")[0].strip()
    assert text.f1(output, ["no such words"]) == 0.0
    assert text.study_f1(output, ["no such words"]) == 0.0
    assert text.study_exact_match(output, ["x", output]) is True
    assert text.study_f1(output, [output, "x"]) == 1.0
    if text.words(output):
        assert text.exact_match(output, ["x", output]) is True
        assert text.f1(output, [output, "x"]) == 1.0


@needs_rwku
def test_on_every_real_alias() -> None:
    """One alias ("@") normalises to nothing in the study, so that an empty output is right."""
    rows = list(read_jsonl(RWKU_DIR / "utility_factuality.jsonl"))
    aliases = [alias for row in rows for alias in row["answers"]]
    assert (len(rows), len(aliases)) == (1000, 13_879)
    assert [alias for alias in aliases if not text.study_tokens(alias)] == ["@"]
    assert sum(not text.words(alias) for alias in aliases) == 60
    assert sum(text.study_f1("", row["answers"]) for row in rows) == 1
    assert sum(text.f1("", row["answers"]) for row in rows) == 0
    for score in [*BOTH_EXACT, *BOTH_F1]:
        assert all(score(alias, [alias]) == 1 for alias in aliases)
    said = [(f"It is {row['answers'][-1]}", row["answers"]) for row in rows]
    study = [text.study_f1(output, answers) for output, answers in said]
    corrected = [text.f1(output, answers) for output, answers in said]
    assert sum(study) / 1000 == pytest.approx(0.660879, abs=1e-6)
    assert sum(corrected) / 1000 == pytest.approx(0.667087, abs=1e-6)
    assert sum(abs(s - c) > 1e-9 for s, c in zip(study, corrected, strict=True)) == 76
