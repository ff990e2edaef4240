"""Answers of BBH: what is found in an output, and what each convention calls right."""

import pytest

from odd_texts import each_empty, each_odd
from real_rows import RWKU_DIR, needs_rwku
from unlearning_grid.data.rwku import read_jsonl
from unlearning_grid.rwku.reasoning import (
    extract,
    match,
    paper_extract,
    paper_match,
    rwku_extract,
    rwku_match,
)

Found = tuple[int, int, int]


@pytest.mark.parametrize(
    ("output", "study", "corrected"),
    [
        ("Let us see. So the answer is (B).", "(B)", "(B)"),
        ("The answer is  No . Or the answer is Yes.", "No", "No"),
        ("First, the answer is No.\nSecond, the answer is Yes.", "No", "No"),
        ("the answer is 2.5.", "2", "2.5"),
        ("So the answer is (B)", "So the answer is (B)", "(B)"),
        ("So the answer is: (B).", "So the answer is: (B).", "(B)"),
        ("THE ANSWER IS (b).", "THE ANSWER IS (b).", "(b)"),
        ("|he answer is No.", "No", "|he answer is No"),  # a bar is in the study's class of letters
        ("**The answer is:** **(B)**.", "**The answer is:** **(B)**.", "(B)"),
        ("the answer is\n(B).", "the answer is\n(B).", "(B)"),
        ("the answer is (B)\nis it not.", "the answer is (B)\nis it not.", "(B)"),
        ("the answer is \u201cNo.\u201d\n", "\u201cNo", "No"),
        ("the answer is ] ) >.", "] ) >", "] ) >"),
        ("the answer is -50.", "-50", "-50"),
        ("the answer is .", "NOANSWER", ""),
        ("I add them up.\n\n No \n", "I add them up.\n\n No", "No"),
        ("No.\n\nQ: Is it?\nA: The answer is Yes.", "Yes", "No"),
        ("Q: Is it?\nNo", "Q: Is it?\nNo", "No"),
        ("the answer is no\nQ: the answer is 1.", "1", "no"),
        ("\n\nQ:\nthe answer is 1.", "1", "1"),
        ("So the answer is no. Because it rains.", "no", "no"),
        ("the answer is 3.5! Done", "3", "3.5"),
        ("these answer is 1", "these answer is 1", "these answer is 1"),
    ],
)
def test_extraction(output: str, study: str, corrected: str) -> None:
    assert rwku_extract(output) == study
    assert paper_extract(output) == ("" if output == "the answer is ." else study)
    assert extract(output) == corrected


@pytest.mark.parametrize(
    ("extracted", "answer", "paper", "rwku", "corrected"),
    [
        ("(B)", "(B)", True, True, True),
        ("B", "(B)", True, True, True),
        ("b", "(B)", True, True, True),
        ("(b) the cat", "(B)", False, False, True),
        ("\uff08\uff22\uff09", "(B)", False, False, True),
        ("Bruce", "(B)", False, False, False),
        ("(C)", "(B)", False, False, False),
        ("B or C", "(B)", False, False, False),
        # nothing is left of "(A)", so anything without content is right, and "A" for any option
        ("(A)", "(A)", True, True, True),
        ("the", "(A)", True, True, False),
        ("---", "(A)", True, True, False),
        ("(A)", "(B)", False, True, False),
        ("---", "(B)", False, True, False),
        ("NOANSWER", "(A)", False, False, False),
        # brackets only
        ("] ) >", "] ) >", True, True, True),
        ("])>", "] ) >", True, True, True),
        ("(", "] ) >", True, True, False),
        ("", "] ) >", True, True, False),
        # words: never right for RWKU, unless nothing is left and the answer holds a blank or an "a"
        ("Yes", "Yes", True, False, True),
        ("yes", "Yes", True, False, True),
        ("Y", "Yes", False, True, False),
        ("The yes", "Yes", True, False, False),
        ("...", "Yes", False, False, False),
        ("...", "valid", False, True, False),
        ("alpha beta", "alpha beta", True, False, True),
        ("alpha, beta", "alpha beta", True, False, True),
        ("beta alpha", "alpha beta", False, False, False),
        ("the", "alpha beta", False, True, False),
        # numbers: the study deletes the sign and the full stop
        ("50", "-50", True, False, False),
        ("-50", "-50", True, False, True),
        ("\u221250", "-50", False, False, True),
        ("- 50", "-50", True, False, True),
        ("-50", "50", True, False, False),
        ("2.5", "25", True, False, False),
        ("1 234", "1234", False, False, False),
        ("1,234", "1234", True, False, True),
        ("50.0", "50", False, False, True),
        ("7", "7", True, True, True),
        ("7 apples", "7", False, False, False),
        ("\uff17", "7", False, False, True),
    ],
)
def test_matching(extracted: str, answer: str, paper: bool, rwku: bool, corrected: bool) -> None:
    assert paper_match(extracted, answer) is paper
    assert rwku_match(extracted, answer) is rwku
    assert match(extracted, answer) is corrected


@each_empty
def test_an_output_without_text_is_never_right(output: str) -> None:
    for answer in ("(A)", "(B)", "] )", "Yes", "50", "the"):
        assert match(extract(output), answer) is False


@each_odd
def test_odd_outputs(output: str) -> None:
    assert (paper_extract(output) or "NOANSWER") == rwku_extract(output)
    assert rwku_extract(output) in (output.strip(), "NOANSWER")
    assert "\n" not in extract(output)
    answer = "zebra crossing"
    assert not paper_match(paper_extract(output), answer)
    assert not match(extract(output), answer)
    assert match(extract(f"The answer is {answer}.\n{output}"), answer)
    assert paper_match(paper_extract(f"The answer is {answer}.\n{output}"), answer)


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("So the answer is {answer}.", (810, 564, 810)),
        ("{answer}", (810, 564, 810)),
        ("So the answer is {answer}. This follows from the above.", (810, 564, 810)),
        ("", (0, 0, 0)),
        ("...", (160, 631, 0)),
        ("So the answer is the.", (160, 631, 0)),
        ("So the answer is (A).", (160, 631, 130)),
        ("So the answer is (E).", (42, 160, 42)),
        ("So the answer is True.", (17, 0, 17)),
        ("So the answer is {unsigned}.", (810, 564, 792)),
        ("**The answer is:** {answer}\n\nQ: Else?\nA: So the answer is no.", (62, 0, 810)),
    ],
)
@needs_rwku
def test_on_every_real_row(said: str, right: Found) -> None:
    """Rows of 810 that `paper`, `rwku` and `corrected` call right: 510 options (130 of them "(A)"),
    30 of brackets, 60 numbers (18 of them negative), 210 words."""
    found = [0, 0, 0]
    for row in read_jsonl(RWKU_DIR / "utility_reason.jsonl"):
        answer = row["answer"]
        output = said.format(answer=answer, unsigned=answer.lstrip("-"))
        found[0] += paper_match(paper_extract(output), answer)
        found[1] += rwku_match(rwku_extract(output), answer)
        found[2] += match(extract(output), answer)
    assert tuple(found) == right
