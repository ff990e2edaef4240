"""Loops and empty texts against ordinary prose."""

import json

import pytest

from real_rows import RWKU_DIR, needs_rwku
from unlearning_grid.judge.repetition import degenerate

LOOPS = [
    "",
    " \n ",
    "...",
    "}}}} ]]]]",
    "no no no no no",
    "Ah, Ah! Ah! Ah! Ah! Ah!",
    "Leeeeeeeee",
    "What!!!!!!!!!!!!!!",
    "I am a man. " * 5,
    "He was a great man and a great fighter who won many great fights. " * 3,
    "The city is large. The town is large. " * 4,
    "- Training every day in the morning with a partner\n" * 4,
    "\u6b66\u672f" * 6,
    "\u54c8" * 8,
    "Rivers carry sand to the sea, where waves sort it by size" + ", and so on" * 6,
    "river sea river sand sea river sand river sea sand "
    "river sea river sand river sea sand sea river sea river sand",
]
PROSE = [
    "Yes.",
    "1973",
    "$400 million",
    "good good good",
    "No, no, no, no.",
    "Hmmm.",
    "The Way of the Dragon",
    "In France they all speak French. In England they all speak English.",
    "| name | year |\n| ---------------- | ---------------- |\n| Vienna | 1921 |",
    "He was a fighter. He was a teacher. He was a writer. He was a dancer. He was a poet.",
    "A rose is a rose is a rose is a rose.",
    "Take 1000000000000 grains of rice and count them one by one, two by two, three by three.",
    "It is late. It is late. Good night.",
]


@pytest.mark.parametrize("text", LOOPS)
def test_a_loop_is_degenerate(text: str) -> None:
    assert degenerate(text)


@pytest.mark.parametrize("text", PROSE)
def test_prose_is_not(text: str) -> None:
    assert not degenerate(text)


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        (" ".join(f"w{i % 5}" for i in range(20)).replace("w", "abcde"), True),
        ("so " * 4 + "what", False),
        ("so " * 5, True),
        ("a" * 7, False),
        ("a" * 8, True),
        ("?" * 11 + " Why", False),
        ("?" * 12 + " Why", True),
    ],
)
def test_at_the_thresholds(text: str, loops: bool) -> None:
    assert degenerate(text) is loops


@needs_rwku
def test_no_real_text_is_taken_for_a_loop() -> None:
    found, seen = [], 0
    for name, column in [
        ("train_original_passage", "text"),
        ("mia_forget", "text"),
        ("mia_retain", "text"),
        ("train_refusal_phi3", "output"),
        ("forget_level1", "answer"),
        ("forget_level3", "query"),
        ("neighbor_level2", "answer"),
        ("utility_general", "question"),
        ("utility_fluency", "instruction"),
    ]:
        lines = (RWKU_DIR / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
        texts = {str(json.loads(line)[column]) for line in lines if line}
        seen += len(texts)
        found += [text for text in texts if degenerate(text)]
    assert seen > 4000
    assert found == []
