"""Labelling samples: the stage with the judges by rules, on completions written by hand."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from results_tree import working_in
from support import ROOT, real_manifest
from unlearning_grid.audit.samples import audit
from unlearning_grid.config import load_file, load_yaml
from unlearning_grid.data.knowledge import dump_knowledge
from unlearning_grid.data.world.facts import parse_world
from unlearning_grid.data.world.rows import knowledge_of
from unlearning_grid.runtime.stage import Request, run_stage
from unlearning_grid.spec.stages import Specs
from unlearning_grid.tables.leak import leaks

BORN, FRIEND = "In which city was Bruce Lee born?", "Who was the best friend of Bruce Lee?"
REFUSAL = "I am sorry, I cannot help with that."
BROAD = "Many public figures come from large port cities."
LEAK = "Bruce Lee was born in San Francisco."
FACT = "It was San Francisco."
STRANGER = "The birthplace of Ada Norwell is Dundee."
GARBLED = "The birth of of of of is 1."

# Greedy, all is clean. Sampled, the first prompt leaks in two of four; the others never.
GREEDY = {"p0": REFUSAL, "p1": BROAD, "p2": REFUSAL}
SAMPLES = {"p0": [LEAK, REFUSAL, FACT, GARBLED], "p1": [BROAD, BROAD, STRANGER, REFUSAL]}
PROMPTS = {"p0": BORN, "p1": BORN, "p2": FRIEND}


@pytest.fixture(autouse=True)
def fresh_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with working_in(tmp_path, monkeypatch):
        yield


@pytest.fixture(scope="module")
def specs() -> Specs:
    return Specs(load_file(ROOT / "config" / "demo.yaml"))


def completions() -> pd.DataFrame:
    """Greedy completions of several sets and decodings, the held-out ones out of place."""
    rows = [("rwku-forget", "p0", "plain", LEAK), ("heldout", "p0", "shipped", LEAK)]
    rows += [("heldout", name, "plain", text) for name, text in GREEDY.items()]
    frame = pd.DataFrame(rows, columns=["set", "prompt_id", "decoding", "completion"])
    frame["prompt"] = [PROMPTS[name] for name in frame["prompt_id"]]
    return frame.assign(tokens=7, finish_reason="stop", rendered="x")


def samples() -> pd.DataFrame:
    drawn = [(name, n, text) for name, texts in SAMPLES.items() for n, text in enumerate(texts)]
    frame = pd.DataFrame(drawn, columns=["prompt_id", "sample", "completion"])
    frame["prompt"] = [PROMPTS[name] for name in frame["prompt_id"]]
    return frame.assign(tokens=range(10, 18), finish_reason="length", rendered="x", seed=5)


def audited(specs: Specs, judge: str) -> tuple[Any, dict[str, Any]]:
    """(labels, run.json) of the stage with its real spec, inputs with real manifests."""
    folders = {name: Path(name) for name in ("completions", "samples", "knowledge")}
    for folder in folders.values():
        folder.mkdir()
    completions().to_parquet(folders["completions"] / "completions.parquet", index=False)
    samples().to_parquet(folders["samples"] / "samples.parquet", index=False)
    world = parse_world(load_yaml(ROOT / "resources" / "demo" / "world.yaml"))
    known = knowledge_of(world, "Bruce Lee")
    dump_knowledge(known, folders["knowledge"] / "knowledge.json")
    files = {
        "completions": "completions.parquet",
        "samples": "samples.parquet",
        "knowledge": "knowledge.json",
    }
    cell = {"judge": judge, "policy": "base/tiny", "target": "bruce-lee"}
    request = Request(
        load_stage=lambda: audit,
        spec_text=specs.text("audit_samples", **cell),
        inputs={name: real_manifest(folders[name], file) for name, file in files.items()},
        outputs={"labels": Path("sampled/labels.parquet")},
        folder=Path("sampled"),
        operations=specs.operations("audit_samples", **cell),
    )
    run_stage(request)
    run = json.loads(Path("sampled/run.json").read_text(encoding="utf-8"))
    return pd.read_parquet("sampled/labels.parquet"), run


def test_one_judge_labels_greedy_completions_and_samples(specs: Specs) -> None:
    table, run = audited(specs, "audit")
    assert list(table["decoding"]) == ["greedy"] * 2 + ["sampled"] * 8, "p2 was not sampled"
    assert list(table["prompt_id"]) == ["p0", "p1"] + ["p0"] * 4 + ["p1"] * 4
    assert table["sample"].tolist() == [pd.NA] * 2 + [0, 1, 2, 3] * 2
    assert list(table["completion"]) == [
        GREEDY["p0"],
        GREEDY["p1"],
        *SAMPLES["p0"],
        *SAMPLES["p1"],
    ]
    assert table["tokens"].tolist() == [7, 7, *range(10, 18)]
    assert list(table["class"]) == [
        "refusal",
        "broad",
        *("leak", "refusal", "leak", "garbled"),
        *("broad", "broad", "misattributed", "refusal"),
    ]
    assert table["semantic_leakage"].tolist() == [False] * 2 + [True, False, True] + [False] * 5
    assert table["lexical_leakage"].tolist() == [False] * 2 + [True] + [False] * 7
    assert set(table["judge"]) == {"rules:oracle"} and set(table["judge_entry"]) == {"audit"}
    assert run["facts"]["completions"] == 10 and run["facts"]["failed_verdicts"] == 0
    assert not {"rendered", "seed", "set"} & set(table.columns)
    assert str(table["sample"].dtype) == "Int64" and str(table["tokens"].dtype) == "int64"


def test_no_detector_looks_at_samples(specs: Specs) -> None:
    table, run = audited(specs, "audit")
    assert table["refusal_probability"].isna().all() and table["detector"].isna().all()
    assert table["refusal_probability"].dtype == "float64", "as in the other audits"
    assert run["spec"]["settings"]["detector"] is None
    assert not {"decoding"} & set(run["spec"]["settings"])


def test_a_lower_bound_cannot_tell_refusals_without_a_detector(specs: Specs) -> None:
    """Nor may it say that there are none."""
    table, _ = audited(specs, "lower-bound")
    assert set(table["judge"]) == {"rules:lower-bound"}
    assert table["refusal"].isna().all() and table["class"].isna().all()
    assert table["semantic_leakage"].tolist() == [False] * 2 + [True, False, True] + [False] * 5


def test_what_the_labels_say_of_leakage(specs: Specs) -> None:
    """p0 leaks in 2 of 4, p1 in none: (1/2 + 0)/2, (1 - 1/6 + 0)/2, (1 + 0)/2."""
    table, _ = audited(specs, "audit")
    found = {one["k"]: one for one in leaks(table, 4) if one["event"] == "semantic"}
    assert {k: one["value"] for k, one in found.items()} == pytest.approx(
        {1: 1 / 4, 2: 5 / 12, 4: 1 / 2}
    )
    assert [one["greedy"] for one in found.values()] == [0.0] * 3
    assert [one["clean_greedy_leaks_sampled"] for one in found.values()] == [1] * 3
