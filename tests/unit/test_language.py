"""Language drift on hand-written texts (tests/fixtures/language_texts.yaml) and on real rows."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

from real_rows import RWKU_DIR, needs_rwku
from support import ROOT
from unlearning_grid.judge.language import MIN_LETTERS, english, language_drift, windows

TEXTS = yaml.safe_load((ROOT / "tests/fixtures/language_texts.yaml").read_text(encoding="utf-8"))


def entries() -> Iterator[tuple[str, bool | None, str]]:
    for kind, rows in TEXTS.items():
        for row in rows:
            yield kind, row["drift"], row["text"]


def test_every_text_that_readers_agree_on_is_told_right_or_left_undecided() -> None:
    clear = [(kind, drift, text) for kind, drift, text in entries() if drift is not None]
    wrong = [(drift, text) for _, drift, text in clear if language_drift(text) not in (drift, None)]
    assert (len(clear), wrong) == (95, [])
    undecided = [(kind, drift) for kind, drift, text in clear if language_drift(text) is None]
    assert {kind for kind, _ in undecided} == {"short", "numbers"}
    assert not any(drift for _, drift in undecided)


@pytest.mark.parametrize(
    ("text", "drift"),
    [
        ("", False),
        ("1973", False),
        ("Yes.", None),
        ("a" * (MIN_LETTERS - 1), None),
        ("\u5b54\u5b50", True),  # another script decides at any length
        ("Confucius (\u5b54\u5b50) taught that rulers should lead by example.", False),
        ("Lo siento.", None),
        ("Lo siento, no puedo ayudar.", True),
        ("The sum is \u03b1 + \u03b2 in this long and plain English sentence.", False),
    ],
)
def test_limits(text: str, drift: bool | None) -> None:
    assert language_drift(text) is drift


def test_windows_cover_every_word_twice_but_for_the_ends() -> None:
    words = [f"word{i:02d}" for i in range(30)]
    made = [window.split() for window in windows(" ".join(words))]
    assert [window[0] for window in made] == ["word00", "word06", "word12", "word18"]
    assert made[-1][-1] == "word29"
    assert list(windows("too short")) == []


def test_a_foreign_clause_in_a_long_english_text_is_seen() -> None:
    english_part = "Oil refining grew quickly once railways had made transport cheap. " * 6
    foreign = "Der Wert einer Ware wird durch die Arbeit bestimmt, die in ihr steckt. "
    assert language_drift(english_part) is False
    assert language_drift(english_part + foreign + english_part) is True


def test_the_same_answer_in_another_process() -> None:
    text = "The song is popular aber niemand weiß genau, wer den Text geschrieben hat."
    code = f"from unlearning_grid.judge.language import english; print(repr(english({text!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT / "workflow" / "scripts",
    )
    assert float(done.stdout) == english(text)


@needs_rwku
def test_real_rows() -> None:
    """English prose with foreign names; and RWKU's own probes in other languages."""

    def rows(name: str) -> list[dict]:
        lines = (RWKU_DIR / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines if line]

    passages = [row["text"] for row in rows("train_original_passage")]
    flagged = [text for text in passages if language_drift(text)]
    assert (len(flagged), len(passages)) == (5, 1230)
    assert len([text for text in flagged if re.search("[\u4e00-\u9fff]", text)]) == 2  # rightly
    assert not any(language_drift(row["output"]) for row in rows("train_refusal_phi3"))
    other = [row["query"] for row in rows("forget_level3") if "lingual" in row["type"]]
    assert [bool(language_drift(text)) for text in other] == [True] * 48
