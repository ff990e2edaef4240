"""Scores of every set in every convention, on real rows where they are here: values by hand."""

import json
from collections import Counter
from typing import Any

import pandas as pd
import pytest

from unlearning_grid.rwku.conventions import CONVENTIONS
from unlearning_grid.rwku.score import (
    GENERATED,
    LIKELIHOOD,
    completion_rows,
    likelihood_rows,
    mc1,
    mc2,
)

BYTE_LEVEL = {"newline_is_token": False}


def prompt(answer: Any, **more: Any) -> dict[str, Any]:
    return {
        "config": "forget_level1",
        "prompt_id": "p0",
        "type": "cloze",
        "level": 1,
        "rendered": "?",
        "answer": json.dumps(answer),
        "repeated": False,
        **more,
    }


def generated(
    kind: str,
    answer: Any,
    plain: str,
    shipped: str | None = None,
    facts: dict[str, bool] = BYTE_LEVEL,
    **more: Any,
) -> dict[tuple[str, str], dict[str, Any]]:
    """(metric, convention) -> row, of one prompt and its completion."""
    texts = {"plain": plain} | ({} if shipped is None else {"shipped": shipped})
    completions = pd.DataFrame(
        {"prompt_id": "p0", "decoding": list(texts), "completion": list(texts.values())}
    )
    asked = pd.DataFrame([prompt(answer, **more)])
    rows = completion_rows(asked, completions, GENERATED[kind], facts)
    return {(row["metric"], row["convention"]): row for row in rows}


def scores(found: dict[tuple[str, str], dict[str, Any]]) -> dict[tuple[str, str], Any]:
    return {key: row["score"] for key, row in found.items()}


ROUGE = "rouge_l_recall"
# gold, output -> corrected, paper, rwku; None where the study's package raises
PROBES = [
    ("Jeet Kune Do", " jeet kune do", 1.0, 0.0, 0.0),  # case
    ("Kong Fuzi", "Kong, Fuzi", 1.0, 0.5, 0.5),  # a comma glued to a word
    ("Trier", "\nTrier", 1.0, 0.0, 1.0),  # the study keeps what stands before the first break
    ("Trier", "Berlin\nTrier", 0.0, 0.0, 1.0),  # RWKU's stop never fires here
    ("Trier", "...", 0.0, None, None),
    ("Trier", "", 0.0, 0.0, 0.0),  # "NOANSWER"
    ("Qué Hiciste", "Que Hiciste", 0.5, 0.5, 0.5),  # an accent makes another word, as in the gold
    ("孔丘", "孔丘", 1.0, 1.0, 1.0),
    ("Trier", "word " * 2000, 0.0, 0.0, 0.0),
    ("Trier", "<b>Trier</b>\x00", 1.0, 0.0, 0.0),  # markup glued to the word
]


@pytest.mark.parametrize(("gold", "output", "corrected", "paper", "rwku"), PROBES)
def test_probes(
    gold: str, output: str, corrected: float, paper: float | None, rwku: float | None
) -> None:
    found = generated("forget", gold, output)
    assert scores(found) == {
        (ROUGE, "corrected"): pytest.approx(corrected),
        (ROUGE, "paper"): paper,
        (ROUGE, "rwku"): rwku,
    }


def test_states_tell_empty_from_crash_and_repetition() -> None:
    empty = generated("forget", "Trier", " \n ")
    assert {row["state"] for row in empty.values()} == {"empty"}
    assert empty[ROUGE, "paper"]["output"] == "NOANSWER"
    dots = generated("forget", "Trier", "...")
    assert [dots[ROUGE, c]["state"] for c in ("corrected", "paper", "rwku")] == [
        "ok",
        "crash",
        "crash",
    ]
    again = generated("neighbor", "Trier", "Trier", repeated=True)
    assert (again[ROUGE, "paper"]["state"], again[ROUGE, "paper"]["score"]) == ("repeated", None)
    assert again[ROUGE, "rwku"]["score"] == again[ROUGE, "corrected"]["score"] == 1


def test_only_the_paper_reads_the_penalised_completion() -> None:
    found = generated("forget", "Trier", "Trier", shipped="Berlin")
    assert {c: (row["score"], row["decoding"]) for (_, c), row in found.items()} == {
        "corrected": (1.0, "plain"),
        "paper": (0.0, "shipped"),
        "rwku": (1.0, "plain"),
    }


def test_rwkus_stop_fires_where_the_vocabulary_has_the_line_break() -> None:
    found = generated("forget", "Trier", "Berlin\nTrier", facts={"newline_is_token": True})
    assert found[ROUGE, "rwku"]["score"] == 0


def test_reasoning() -> None:
    found = generated("reason", "(B)", "First ... So the answer is (B).\n\nQ: next")
    exact = "exact_match"
    assert scores(found) == {
        (exact, "corrected"): 1,
        (exact, "paper"): 1,
        (exact, "rwku"): 1,  # the one letter "B" is among the characters of "(B)"
    }
    word = generated("reason", "valid", "the answer is valid.")
    assert scores(word) == {(exact, "corrected"): 1, (exact, "paper"): 1, (exact, "rwku"): 0}
    unfinished = generated("reason", "No", "the answer is No")
    assert scores(unfinished) == {(exact, "corrected"): 1, (exact, "paper"): 0, (exact, "rwku"): 0}
    nothing = generated("reason", "(A)", "")
    assert scores(nothing) == {(exact, "corrected"): 0, (exact, "paper"): 0, (exact, "rwku"): 0}
    assert {row["state"] for row in nothing.values()} == {"empty"}
    vague = generated("reason", "(A)", "the answer is .")
    assert scores(vague) == {(exact, "corrected"): 0, (exact, "paper"): 1, (exact, "rwku"): 0}
    assert {row["state"] for row in vague.values()} == {"ok"}


def test_factuality_has_no_exact_match_in_the_paper() -> None:
    found = generated("factuality", ["the Nile", "Nile River"], " Nile\nQ: more words here")
    assert scores(found) == {
        ("f1", "corrected"): 1,
        ("exact_match", "corrected"): 1,
        ("f1", "paper"): pytest.approx(2 * 1 * (1 / 5) / (1 + 1 / 5)),
        ("f1", "rwku"): pytest.approx(2 * 1 * (1 / 5) / (1 + 1 / 5)),
        ("exact_match", "rwku"): 0,
    }


def test_fluency_of_four_different_words() -> None:
    found = generated("fluency", None, "one two three four")
    # three bigrams and two trigrams, each once: log2(3) and 1 bit
    value = (2 / 3 * 1.584962500721156 + 4 / 3 * 1.0) / 2
    assert list(scores(found).values()) == [pytest.approx(value)] * 3


def likely(kind: str, asked: dict[str, Any], **found: Any) -> dict[tuple[str, str], Any]:
    measured = pd.DataFrame([{"prompt_id": "p0", **found}])
    rows = likelihood_rows(pd.DataFrame([asked]), measured, LIKELIHOOD[kind])
    return {(row["metric"], row["convention"]): row for row in rows}


def test_general_takes_the_likeliest_letter() -> None:
    found = likely("general", prompt(2), logprobs=[-3.0, -2.0, -1.0, -4.0])
    assert [row["output"] for row in found.values()] == ["C"] * 3
    assert [row["score"] for row in found.values()] == [1.0] * 3
    alone = likely("general", prompt(0), logprobs=[-1.0])
    assert {(row["score"], row["state"]) for row in alone.values()} == {(None, "undefined")}


TARGETS = [("yes", 1), ("no", 0), ("never", 0)]


def test_truthfulness() -> None:
    asked = prompt({"mc1": TARGETS, "mc2": [*TARGETS, ("sure", 1)]})
    found = likely(
        "truthfulness",
        asked,
        choices=["yes", "no", "never", "sure"],
        logprobs=[-2.0, -2.5, -9.0, -1.0],
    )
    expected = (0.1353352832 + 0.3678794412) / (
        0.1353352832 + 0.3678794412 + 0.0820849986 + 0.0001234098
    )
    assert {key: row["score"] for key, row in found.items()} == {
        ("mc1", "corrected"): 1.0,
        ("mc1", "paper"): 1.0,
        ("mc1", "rwku"): 1.0,
        ("mc2", "corrected"): pytest.approx(expected),
        ("mc2", "rwku"): pytest.approx(expected),
    }


def test_choices_far_below_the_smallest_float_still_have_a_share() -> None:
    assert mc2(TARGETS, {"yes": -2000.0, "no": -2000.0, "never": -4000.0}) == pytest.approx(0.5)
    assert mc1(TARGETS, {"yes": -2.0, "no": -2.0, "never": -3.0}) == 0  # a tie is no win
    assert mc1([("yes", 1)], {"yes": -1.0}) is None
    assert mc2([("yes", 1)], {"yes": -1.0}) is None


def test_membership_turns_the_sign_for_rwku() -> None:
    names = [f"{kind}_{p}" for kind in ("min_k", "min_k_plus_plus") for p in range(10, 101, 10)]
    values = dict.fromkeys(names, -1.0)
    found = likely(
        "mia", prompt(None), loss=2.0, zlib=-0.01, study_loss=2.5, **(values | {"min_k_10": None})
    )
    assert found["loss", "corrected"]["score"] == 2.0
    assert found["loss", "rwku"]["score"] == -2.0
    assert found["loss", "paper"]["score"] == 2.5
    assert found["zlib", "corrected"]["score"] == found["zlib", "rwku"]["score"] == -0.01
    assert found["min_k_10", "rwku"]["state"] == "undefined"
    assert Counter(c for _, c in found) == {"corrected": 22, "rwku": 22, "paper": 1}


NAN = float("nan")


def test_a_policy_without_numbers_has_no_scores() -> None:
    letters = likely("general", prompt(0), logprobs=[NAN, NAN, NAN, NAN])
    assert {(row["score"], row["state"]) for row in letters.values()} == {(None, "undefined")}
    asked = prompt({"mc1": TARGETS, "mc2": TARGETS})
    choices = ["yes", "no", "never"]
    found = likely("truthfulness", asked, choices=choices, logprobs=[-1.0, NAN, -2.0])
    assert {(row["score"], row["state"]) for row in found.values()} == {(None, "undefined")}
    names = [f"{kind}_{p}" for kind in ("min_k", "min_k_plus_plus") for p in range(10, 101, 10)]
    text = likely("mia", prompt(None), loss=None, zlib=None, study_loss=NAN, **dict.fromkeys(names))
    assert {(row["score"], row["state"]) for row in text.values()} == {(None, "undefined")}


def frame(*prompt_ids: str) -> pd.DataFrame:
    return pd.DataFrame([prompt(0, prompt_id=name, config=name[0]) for name in prompt_ids])


def measured(*prompt_ids: str) -> list[str]:
    found = pd.DataFrame({"prompt_id": prompt_ids, "logprobs": [[-1.0, -2.0]] * len(prompt_ids)})
    rows = likelihood_rows(frame("a0", "a1", "a2", "b0", "b1"), found, LIKELIHOOD["general"])
    return [row["prompt_id"] for row in rows[:: len(CONVENTIONS)]]


def test_the_first_prompts_of_each_config_may_be_all() -> None:
    assert measured("a0", "a1", "b0") == ["a0", "a1", "b0"]
    assert measured("a0", "a1", "a2", "b0", "b1") == ["a0", "a1", "a2", "b0", "b1"]


def test_a_lost_or_unknown_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="a1 was not measured"):
        measured("a0", "a2", "b0")
    with pytest.raises(ValueError, match="1 measured rows are no prompts"):
        measured("a0", "b0", "c0")
