"""The stage that checks refusal detectors on labelled sentences."""

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from support import ROOT
from unlearning_grid.errors import UserError
from unlearning_grid.models import detector_check
from unlearning_grid.models.detector import RefusalDetector
from unlearning_grid.models.detector_check import evaluate, has_phrase, read_sentences
from unlearning_grid.runtime.job import Job

PINNED = {"repo": "garak-llm/garak-refusal-detector", "revision": "5" * 40}
CLASSES = {
    "plain": [
        {"text": "I cannot help with that.", "refusal": True},
        {"text": "That is not something I know.", "refusal": True},
    ],
    "mixed": [
        {"text": "I can't speak to her, but stars burn gas.", "refusal": True, "ambiguous": True},
        {"text": "Broadly, stars burn gas.", "refusal": False, "ambiguous": True},
    ],
    "broad": [
        {"text": "Unfortunately for sailors, fog is common here.", "refusal": False},
        {"text": "A star burns gas.", "refusal": False},
        {"text": "It never rains.", "refusal": False},
    ],
}
# "not", "never" or "can't" -> high: right, wrong and ambiguous ones among them.
PROBABILITIES = {"I cannot": 0.494, "That is not": 0.97, "I can't": 0.9, "It never": 0.496}


class Fake:
    """A detector with the probabilities above, 0.01 elsewhere."""

    def probabilities(self, texts: list[str]) -> list[float]:
        def one(text: str) -> float:
            return next((p for start, p in PROBABILITIES.items() if text.startswith(start)), 0.01)

        return [one(text) for text in texts]


def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compare: Any = (), **changes: Any
) -> tuple[dict[str, Any], Any, Any]:
    """The stage with a fake detector of the grid: its summary and both tables."""
    monkeypatch.setattr(detector_check, "load_detector", lambda _job, _block: Fake())
    settings = {"detector": {"name": "own"}, "compare": list(compare), "sentences": CLASSES}
    outputs = {
        "sentences": tmp_path / "sentences.parquet",
        "table": tmp_path / "table.parquet",
        "csv": tmp_path / "table.csv",
    }
    job = Job(spec={"settings": settings | changes}, inputs={}, outputs=outputs, work=tmp_path)
    summary = evaluate(job)
    return summary, pd.read_parquet(outputs["sentences"]), pd.read_parquet(outputs["table"])


def figures(table: Any, detector: str) -> dict[str, list[Any]]:
    """class -> [n, ambiguous, flagged, tp, fp, tn, fn, accuracy], None where missing."""
    columns = ["n", "ambiguous", "flagged", *detector_check.OUTCOMES, "accuracy"]
    rows = table[table["detector"] == detector].set_index("class")[columns]
    return {str(kind): [None if pd.isna(v) else v for v in row] for kind, *row in rows.itertuples()}


def test_counts_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary, sentences, table = run(tmp_path, monkeypatch)
    assert summary == {"sentences": 7, "detectors": 2, "missing": []}
    assert figures(table, "own") == {
        "plain": [2, 0, 1, 1, 0, 0, 1, 0.5],  # 0.494 rounds to 0.49
        "mixed": [2, 2, 1, None, None, None, None, None],
        "broad": [3, 0, 1, 0, 1, 2, 0, pytest.approx(2 / 3)],  # 0.496 rounds to 0.5
        "all": [7, 2, 3, 1, 1, 2, 1, 0.6],
    }
    assert figures(table, "phrases") == {
        "plain": [2, 0, 1, 1, 0, 0, 1, 0.5],
        "mixed": [2, 2, 1, None, None, None, None, None],
        "broad": [3, 0, 1, 0, 1, 2, 0, pytest.approx(2 / 3)],
        "all": [7, 2, 3, 1, 1, 2, 1, 0.6],
    }
    assert set(table["status"]) == {"ok"} and table["reason"].isna().all()
    assert Counter(sentences["detector"]) == {"own": 7, "phrases": 7}
    own = sentences[sentences["detector"] == "own"]
    assert own["probability"].tolist() == [0.494, 0.97, 0.9, 0.01, 0.01, 0.01, 0.496]
    assert own["flagged"].tolist() == [False, True, True, False, False, False, True]
    assert sentences[sentences["detector"] == "phrases"]["probability"].isna().all()
    assert own["text"].tolist() == [e["text"] for rows in CLASSES.values() for e in rows]
    header = (tmp_path / "table.csv").read_text(encoding="utf-8").partition("\n")[0]
    assert header.split(",") == list(table.columns)


def test_a_classifier_that_is_not_here_is_missing_and_not_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    summary, sentences, table = run(tmp_path, monkeypatch, compare=[PINNED])
    assert summary["missing"] == ["garak-refusal-detector"]
    row = table[table["detector"] == "garak-refusal-detector"]
    assert row["status"].tolist() == ["missing"]
    assert row["revision"].tolist() == [PINNED["revision"]]
    assert row["reason"].iloc[0].startswith("detector.compare 'garak-llm/garak-refusal-detector'")
    assert "cannot be loaded" in row["reason"].iloc[0]
    assert str(tmp_path) not in row["reason"].iloc[0]
    none = [None] * 6
    assert figures(table, "garak-refusal-detector") == {"all": [7, 2, *none]}
    assert "garak-refusal-detector" not in set(sentences["detector"])
    assert figures(table, "own")["all"][0] == 7


def test_classifiers_to_compare_come_from_the_local_cache_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def load(repo: str, revision: str, device: str, local_only: bool, key: str) -> Fake:
        asked.append((repo, revision, device, local_only))
        return Fake()

    monkeypatch.setattr(RefusalDetector, "load", load)
    monkeypatch.setattr(detector_check, "device", lambda: "cpu")
    summary, _, table = run(tmp_path, monkeypatch, compare=[PINNED])
    assert asked == [(PINNED["repo"], PINNED["revision"], "cpu", True)]
    assert summary == {"sentences": 7, "detectors": 3, "missing": []}
    garak, own = (figures(table, name) for name in ("garak-refusal-detector", "own"))
    assert garak == own
    own_block = {"name": "garak-refusal-detector", **PINNED}
    summary, *_ = run(tmp_path, monkeypatch, compare=[PINNED], detector=own_block)
    assert summary["detectors"] == 2 and len(asked) == 1  # itself is not compared


def test_the_grids_own_detector_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(_job: Job, _block: Any) -> Fake:
        raise UserError("detector.repo 'a/b': cannot be loaded")

    monkeypatch.setattr(detector_check, "load_detector", absent)
    job = Job(
        spec={"settings": {"detector": {"name": "own"}, "compare": [], "sentences": CLASSES}},
        inputs={},
        outputs={},
        work=tmp_path,
    )
    with pytest.raises(UserError, match="cannot be loaded"):
        evaluate(job)


@pytest.mark.parametrize(
    "entry", [{"text": "No."}, {"refusal": True}, {"text": "No.", "refusal": "yes"}]
)
def test_an_incomplete_entry_is_named(entry: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="class plain: .* needs `text`"):
        read_sentences({"plain": [entry]})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("I\u2019m sorry, no.", True),
        ("  i cannot say", True),
        ("As an AI language model, I have no view.", True),
        ("Rivers cannot flow uphill.", False),
        ("", False),
    ],
)
def test_phrases(text: str, found: bool) -> None:
    assert has_phrase(text) is found


def test_the_labelled_sentences_of_the_project() -> None:
    path = ROOT / "resources" / "refusal_sentences.yaml"
    found = read_sentences(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert len(found) >= 72 and len({sentence.text for sentence in found}) == len(found)
    kinds = Counter(sentence.kind for sentence in found)
    assert set(kinds) == {
        "plain_refusal",
        "apology_with_content",
        "policy_boilerplate",
        "partial",
        "broad_answer",
        "short_fragment",
    }
    assert min(kinds.values()) >= 10
    assert {s.kind for s in found if s.ambiguous} == {"partial"}
    clear = [sentence for sentence in found if not sentence.ambiguous]
    assert Counter(s.refusal for s in clear) == {True: 29, False: 35}
    innocent = " ".join(s.text.casefold() for s in found if s.kind == "broad_answer")
    for word in ("encountered", "need to check", "cannot", "unknown", "sorry"):
        assert word in innocent
