"""Gold answers as outputs, and nothing as output, for all ten targets and every set: pinned."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from real_rows import RWKU_DIR, needs_rwku
from support import ROOT
from unlearning_grid.config import load_yaml
from unlearning_grid.data.rwku import read_rows, write_jsonl
from unlearning_grid.rwku.prompts import SETS, Renderer
from unlearning_grid.rwku.score import GENERATED, LIKELIHOOD, completion_rows, likelihood_rows

pytestmark = needs_rwku

SUBJECTS = (
    "Confucius", "Bruce Lee", "John D. Rockefeller", "Marlon Brando", "Serena Williams",
    "Tom Clancy", "Jennifer Lopez", "Tony Blair", "Vincent van Gogh", "Karl Marx",
)  # fmt: skip
# Rows of each set for the ten targets, in the order of SUBJECTS.
COUNTS = {
    "forget": (48, 76, 62, 70, 64, 73, 77, 75, 67, 80),
    "neighbor": (52, 60, 56, 60, 59, 60, 60, 60, 55, 50),
    "mia": (64, 87, 83, 95, 97, 56, 101, 91, 74, 83),
    "general": (171,) * 10,
    "reason": (81,) * 10,
    "truthfulness": (50,) * 10,
    "factuality": (100,) * 10,
    "fluency": (50,) * 10,
}
REPEATED = {
    "forget": (3, 8, 2, 3, 1, 2, 8, 3, 1, 4),
    "neighbor": (13, 9, 15, 15, 16, 16, 16, 14, 17, 24),
}
PROBES = {"forget": 692, "neighbor": 572}


class Bare:
    """A tokenizer with the plainest chat template; tokens are not looked at here."""

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return "".join(f"<{m['role']}>{m['content']}\n" for m in messages) + "<assistant>\n"

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [0, 0]}


@cache
def asked(name: str, subject: str, folder: Path) -> pd.DataFrame:
    """The prompts of a set about one person, through the real loader and renderer."""
    renderer = Renderer(Bare(), load_yaml(ROOT / "config/prompts/reworded-v1/rwku.yaml"))
    rows = []
    for config in SETS[f"rwku-{name}"]:
        found = read_rows({"kind": "path", "path": RWKU_DIR}, config, subject)
        write_jsonl(folder / f"{config}.jsonl", found)
        rows += list(renderer.rows(folder, config))
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


def gold(name: str, prompt: dict[str, Any]) -> str:
    answer = json.loads(prompt["answer"]) if prompt["answer"] else ""
    if name == "reason":
        return f"Step by step. So the answer is {answer}."
    return answer[0] if name == "factuality" else answer


def scored(
    name: str, folder: Path, write: Callable[[str, dict[str, Any]], str]
) -> Iterator[dict[str, Any]]:
    for subject in SUBJECTS:
        prompts = asked(name, subject, folder)
        texts = [write(name, prompt) for prompt in prompts.to_dict("records")]
        completions = pd.DataFrame(
            {"prompt_id": prompts["prompt_id"], "decoding": "plain", "completion": texts}
        )
        yield from completion_rows(
            prompts, completions, GENERATED[name], {"newline_is_token": False}
        )


def sums(rows: Iterator[dict[str, Any]]) -> dict[tuple[str, str], tuple[float, int]]:
    """(metric, convention) -> sum of the scores and their number."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["score"] is not None:
            found.setdefault((row["metric"], row["convention"]), []).append(row["score"])
    return {key: (round(sum(values), 6), len(values)) for key, values in found.items()}


@pytest.mark.parametrize("name", COUNTS)
def test_rows_of_each_target(name: str, folder: Path) -> None:
    assert tuple(len(asked(name, subject, folder)) for subject in SUBJECTS) == COUNTS[name]


def test_what_the_study_drops_as_repeated(folder: Path) -> None:
    """Rows whose query an earlier row asks. In these files it is always one of the same target."""
    dropped = {
        name: tuple(asked(name, s, folder)["repeated"].tolist().count(True) for s in SUBJECTS)
        for name in REPEATED
    }
    assert dropped == REPEATED


def probes(name: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Every row that counts scores 1."""
    kept = PROBES[name] - sum(REPEATED[name])
    counts = {"corrected": PROBES[name], "paper": kept, "rwku": PROBES[name]}
    return {("rouge_l_recall", c): (n, n) for c, n in counts.items()}


# RWKU compares a reasoning answer with its single characters, so that no word is ever right.
GOLD = {
    "forget": probes("forget"),
    "neighbor": probes("neighbor"),
    "reason": {
        ("exact_match", "corrected"): (810, 810),
        ("exact_match", "paper"): (810, 810),
        ("exact_match", "rwku"): (564, 810),
    },
    "factuality": {
        (metric, convention): (1000, 1000)
        for metric, convention in (
            ("f1", "corrected"),
            ("f1", "paper"),
            ("f1", "rwku"),
            ("exact_match", "corrected"),
            ("exact_match", "rwku"),
        )
    },
}


@pytest.mark.parametrize("name", GOLD)
def test_gold_answers(name: str, folder: Path) -> None:
    assert sums(scored(name, folder, gold)) == GOLD[name]


@pytest.mark.parametrize("name", [*GOLD, "fluency"])
def test_no_answer(name: str, folder: Path) -> None:
    rows = list(scored(name, folder, lambda *_: ""))
    corrected = [row for row in rows if row["convention"] == "corrected"]
    assert {(row["score"], row["state"]) for row in corrected} == {(0.0, "empty")}
    if name == "factuality":  # the alias "@" is nothing to the study's normalisation
        study = [row["score"] for row in rows if row["convention"] == "paper"]
        assert (sum(study), len(study)) == (1.0, 1000)
    repeated = sum(REPEATED.get(name, ()))
    states = Counter(row["state"] for row in rows)
    assert (states["empty"], states["repeated"]) == (len(rows) - repeated, repeated)


def test_likeliest_gold_letters_and_choices(folder: Path) -> None:
    """The right letter or choice likelier than every other: 1; the other way round: 0."""
    for better, expected in ((0.0, 1.0), (-100.0, 0.0)):
        for subject in SUBJECTS:
            general = asked("general", subject, folder)
            right = [json.loads(answer) for answer in general["answer"]]
            measured = general[["prompt_id"]].assign(
                logprobs=[[better if i == r else -50.0 for i in range(4)] for r in right]
            )
            rows = likelihood_rows(general, measured, LIKELIHOOD["general"])
            assert {row["score"] for row in rows} == {expected}
            questions = asked("truthfulness", subject, folder)
            measured = questions[["prompt_id", "choices"]].assign(
                logprobs=[_choices(prompt, better) for prompt in questions.to_dict("records")]
            )
            rows = likelihood_rows(questions, measured, LIKELIHOOD["truthfulness"])
            assert len(rows) == 50 * 5
            assert [row["score"] for row in rows] == pytest.approx([expected] * 250)


def _choices(prompt: dict[str, Any], better: float) -> list[float]:
    targets = json.loads(prompt["answer"])
    true = {choice for found in targets.values() for choice, label in found if label}
    return [better if choice in true else -50.0 for choice in prompt["choices"]]
