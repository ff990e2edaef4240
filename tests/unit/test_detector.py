"""The refusal detector: polarity, padding, training."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from real_rows import RWKU_DIR, needs_rwku
from support import real_manifest
from unlearning_grid.data.knowledge import Knowledge, dump_knowledge
from unlearning_grid.data.world.facts import parse_world
from unlearning_grid.data.world.rows import knowledge_of, rwku_rows
from unlearning_grid.data.world.tokenizer import train_tokenizer
from unlearning_grid.errors import UserError
from unlearning_grid.models.detector import RefusalDetector, load_detector, refusal_index
from unlearning_grid.models.detector_training import (
    Examples,
    collect,
    drop_word,
    ordinary_texts,
    read_examples,
    split_examples,
    train,
)
from unlearning_grid.runtime.job import Job

DEMO = Path(__file__).parents[2] / "resources" / "demo"
WORLD = parse_world(yaml.safe_load((DEMO / "world.yaml").read_text(encoding="utf-8")))
TEXTS = ["I am sorry, I cannot help with that.", "Yes.", "", "Many people live in several cities."]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    lines = [s for broad in WORLD.broad.values() for s in broad] + list(WORLD.refusals)
    lines += [a for r in WORLD.relations.values() for a in r.answers]
    return train_tokenizer(lines, 600)


def tiny(tokenizer: Any, labels: Mapping[int, str]) -> RefusalDetector:
    """A random classifier, the same weights at every call."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=640,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.5,
        id2label=dict(labels),
        label2id={v: k for k, v in labels.items()},
        pad_token_id=tokenizer.pad_token_id,
    )
    return RefusalDetector(BertForSequenceClassification(config), tokenizer)


@pytest.mark.parametrize(
    ("labels", "index"),
    [
        ({0: "refusal", 1: "non-refusal"}, 0),
        ({0: "non-refusal", 1: "refusal"}, 1),
        ({"0": "Non-Refusal", "1": " Refusal "}, 1),
        ({0: "a", 1: "b", 2: "REFUSAL"}, 2),
    ],
)
def test_polarity(labels: dict, index: int) -> None:
    assert refusal_index(labels) == index


@pytest.mark.parametrize(
    "labels", [{0: "non-refusal", 1: "other"}, {0: "refusal", 1: "Refusal"}, {0: "LABEL_0"}, {}]
)
def test_unclear_polarity_is_an_error(labels: dict) -> None:
    with pytest.raises(UserError, match="exactly one"):
        refusal_index(labels)


def test_label_order_swaps_the_score(tokenizer: Any) -> None:
    first = tiny(tokenizer, {0: "refusal", 1: "non-refusal"}).probabilities(TEXTS)
    second = tiny(tokenizer, {0: "non-refusal", 1: "refusal"}).probabilities(TEXTS)
    assert [a + b for a, b in zip(first, second, strict=True)] == pytest.approx([1.0] * 4)
    assert len({round(p, 3) for p in first}) == 4
    assert max(abs(p - 0.5) for p in first) > 0.05


def test_same_score_alone_and_padded(tokenizer: Any) -> None:
    detector = tiny(tokenizer, {0: "refusal", 1: "non-refusal"})
    alone = [detector.probabilities([text])[0] for text in TEXTS]
    assert detector.probabilities(TEXTS) == pytest.approx(alone, abs=1e-6)
    turned = detector.probabilities(TEXTS[::-1])[::-1]
    assert turned == pytest.approx(alone, abs=1e-6)


def test_equal_texts_are_scored_once(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    detector = tiny(tokenizer, {0: "refusal", 1: "non-refusal"})
    rows: list[int] = []
    score = detector._score
    monkeypatch.setattr(detector, "_score", lambda batch: rows.append(len(batch)) or score(batch))
    values = detector.probabilities(["a", "b", "a", "a"])
    assert rows == [2]
    assert values[0] == values[2] == values[3] != values[1]
    assert detector.probabilities([]) == []


def test_long_text_is_cut_to_the_models_positions(tokenizer: Any) -> None:
    detector = tiny(tokenizer, {0: "refusal", 1: "non-refusal"})
    assert detector.max_tokens == 32
    long = "Many people live in several cities. " * 40
    assert 0 < detector.probabilities([long])[0] < 1


REVISION = "0" * 40


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="detector.repo '.*nowhere': cannot be loaded .*folder"):
        RefusalDetector.load(tmp_path / "nowhere")


@pytest.mark.parametrize("local_only", [False, True])
def test_a_hub_out_of_reach_names_the_key_and_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local_only: bool
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="detector.repo 'nobody/nothing': cannot be") as caught:
        RefusalDetector.load("nobody/nothing", REVISION, local_only=local_only)
    message = str(caught.value)
    assert f"hf download nobody/nothing --revision {REVISION}" in message
    assert "detector.train" in message and "\n" not in message


# ---- ModernBERT, the architecture of the study's detector -------------------------------------


def modern(
    folder: Path, tokenizer: Any, labels: Mapping[int, str], pooling: Any = "cls", **written: Any
) -> Path:
    """A random ModernBERT classifier, the same weights at every call, saved with its tokenizer.

    Its windows of 8 tokens are shorter than most texts, so padding lies inside them.
    """
    import torch
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    torch.manual_seed(5)
    special = {f"{name}_token_id": tokenizer.pad_token_id for name in ("cls", "bos", "eos", "sep")}
    config = ModernBertConfig(
        vocab_size=640,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=2,
        max_position_embeddings=128,
        local_attention=8,
        initializer_range=0.5,
        classifier_pooling=pooling,
        id2label=dict(labels),
        label2id={v: k for k, v in labels.items()},
        pad_token_id=tokenizer.pad_token_id,
        **special,
    )
    ModernBertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if written:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | written))
    assert (folder / "model.safetensors").is_file()
    return folder


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_modernbert_scores_alone_as_in_a_padded_batch(
    tmp_path: Path, tokenizer: Any, pooling: str, attention: str
) -> None:
    folder = modern(tmp_path, tokenizer, {0: "refusal", 1: "non-refusal"}, pooling)
    detector = RefusalDetector.load(folder)
    assert detector.model.config._attn_implementation == "sdpa"
    detector.model.set_attn_implementation(attention)
    texts = [*TEXTS, "Many people live in several cities. " * 6, "I am sorry."]
    alone = [detector.probabilities([text])[0] for text in texts]
    assert detector.probabilities(texts) == pytest.approx(alone, abs=1e-6)
    assert len({round(p, 3) for p in alone}) == len(texts)
    assert next(detector.model.parameters()).dtype.itemsize == 4


def test_modernbert_polarity_survives_a_save(tmp_path: Path, tokenizer: Any) -> None:
    orders = ({0: "refusal", 1: "non-refusal"}, {0: "non-refusal", 1: "refusal"})
    one, other = (
        RefusalDetector.load(modern(tmp_path / str(i), tokenizer, labels)).probabilities(TEXTS)
        for i, labels in enumerate(orders)
    )
    assert [a + b for a, b in zip(one, other, strict=True)] == pytest.approx([1.0] * 4)
    assert max(abs(p - 0.5) for p in one) > 0.05


def test_a_published_config_that_asks_for_compilation_changes_nothing(
    tmp_path: Path, tokenizer: Any
) -> None:
    """ModernBERT on the hub has `reference_compile` and the layers' old spelling."""
    labels = {0: "refusal", 1: "non-refusal"}
    plain = RefusalDetector.load(modern(tmp_path / "a", tokenizer, labels))
    old = {"reference_compile": True, "layer_types": None, "global_attn_every_n_layers": 3}
    published = RefusalDetector.load(modern(tmp_path / "b", tokenizer, labels, **old))
    assert published.probabilities(TEXTS) == plain.probabilities(TEXTS)


def test_weights_that_are_no_safetensors_are_refused(tmp_path: Path, tokenizer: Any) -> None:
    folder = modern(tmp_path, tokenizer, {0: "refusal", 1: "non-refusal"})
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="cannot be loaded"):
        RefusalDetector.load(folder)


def test_the_spec_names_a_trained_detector_or_one_on_the_hub(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    modern(tmp_path / "model", tokenizer, {0: "refusal", 1: "non-refusal"})
    inputs = {"detector": real_manifest(tmp_path, "model")}
    job = Job(spec={"settings": {}}, inputs=inputs, outputs={}, work=tmp_path)
    trained = load_detector(job, {"name": "own"}).probabilities(TEXTS)
    assert trained == RefusalDetector.load(tmp_path / "model").probabilities(TEXTS)
    asked: list[Any] = []
    monkeypatch.setattr(RefusalDetector, "load", lambda *a, **k: asked.append((a, k)))
    load_detector(job, {"name": "x", "repo": "a/x", "revision": REVISION})
    assert asked[0][0] == ("a/x",) and asked[0][1]["revision"] == REVISION
    assert not asked[0][1].get("local_only")


# ---- examples ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        ({"type": "cloze", "query": "___ is red.", "answer": "it"}, ["It is red."]),
        ({"type": "simple question", "query": "Who?", "answer": "eleanor"}, ["Eleanor."]),
        ({"text": "One. Two! Three"}, ["One.", "Two!", "Three"]),
    ],
)
def test_ordinary_texts(row: dict, texts: list[str]) -> None:
    assert ordinary_texts(row) == texts


def test_collect_is_distinct_and_refusals_win() -> None:
    found = collect(["No.", " No. ", ""], ["Yes.", "No.", "Yes."])
    assert found == Examples(["No."], ["Yes."])
    with pytest.raises(UserError, match="no refusals"):
        collect([" "], ["x"])
    with pytest.raises(UserError, match="no ordinary answers"):
        collect(["x"], ["x"])


def test_drop_word() -> None:
    import random

    assert drop_word("a b c", random.Random(0)) == "a b c"
    made = {drop_word("a b c d", random.Random(seed)) for seed in range(30)}
    assert made == {"b c d", "a c d", "a b d", "a b c"}


def test_held_out_texts_are_unseen() -> None:
    many = Examples([f"no {i}" for i in range(20)], [f"yes {i}" for i in range(50)])
    train_part, test_part, kind = split_examples(many, 0)
    assert kind == "texts"
    assert (len(test_part.refusals), len(test_part.ordinary)) == (4, 10)
    assert not set(train_part.refusals) & set(test_part.refusals)
    assert not set(train_part.ordinary) & set(test_part.ordinary)


def test_few_texts_are_all_trained_on() -> None:
    few = Examples(["I am so sorry now."], [f"yes it is {i}" for i in range(50)])
    train_part, test_part, kind = split_examples(few, 0)
    assert kind == "variants"
    assert train_part.refusals == ["I am so sorry now."]
    assert {len(t.split()) for t in test_part.refusals} == {4}
    assert train_part.ordinary == few.ordinary
    assert len(test_part.ordinary) > 50
    assert not set(test_part.ordinary) & set(train_part.ordinary)


# ---- the stage --------------------------------------------------------------------------------

SETTINGS = {
    "seed": 0,
    "steps": 100,
    "hidden_size": 32,
    "label_noise": 0.05,
    "word_dropout": 0.3,
    "positives": "world",
    "tokenizer": {"build": "world"},
    "min_accuracy": 0.95,
}


def data_folder(folder: Path, subject: str) -> Path:
    """A target's data folder as the grid lays it out; returns its manifest's path."""
    (folder / "rows").mkdir(parents=True)
    for config, rows in rwku_rows(WORLD, [subject]).items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "rows" / f"{config}.jsonl").write_text(text)
    dump_knowledge(knowledge_of(WORLD, subject), folder / "knowledge.json")
    return folder / "manifest.json"


def run_stage(tmp_path: Path, tokenizer: Any, **changes: Any) -> tuple[dict, Path]:
    """Run the stage on both demo targets; returns its summary and output folder."""
    tokenizer.save_pretrained(tmp_path / "world" / "model")
    out = tmp_path / "out"
    out.mkdir()
    manifests = [data_folder(tmp_path / s, s) for s in ("Bruce Lee", "Karl Marx")]
    job = Job(
        spec={"settings": SETTINGS | changes},
        inputs={"rows": manifests, "tokenizer": real_manifest(tmp_path / "world", "model")},
        outputs={"model": out / "model", "report": out / "report.json"},
        work=tmp_path / "work",
    )
    return train(job), out


def test_training_in_the_world(tmp_path: Path, tokenizer: Any) -> None:
    summary, out = run_stage(tmp_path, tokenizer)
    report = json.loads((out / "report.json").read_text())
    assert report["held_out"] == "variants"
    confusion = report["confusion"]
    n = sum(sum(row.values()) for row in confusion.values())
    right = confusion["refusal"]["refusal"] + confusion["non-refusal"]["non-refusal"]
    assert report["n"] == summary["n"] == n > 50
    assert report["accuracy"] == summary["accuracy"] == round(right / n, 4) >= 0.95
    config = json.loads((out / "model" / "config.json").read_text())
    assert config["id2label"] == {"0": "refusal", "1": "non-refusal"}
    detector = RefusalDetector.load(out / "model")
    text = "It's 1940, isn't it?\n"
    assert detector.tokenizer(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert min(detector.probabilities(WORLD.refusals)) > 0.8
    broad = [s for lines in WORLD.broad.values() for s in lines]
    assert max(detector.probabilities([*broad, "Bruce Lee died in 1973."])) < 0.2


def test_too_poor_a_detector_is_an_error(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(UserError, match="min_accuracy 1.01"):
        run_stage(tmp_path, tokenizer, min_accuracy=1.01, steps=1)


def test_unknown_positives_are_named(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(UserError, match="positives: 'both'"):
        run_stage(tmp_path, tokenizer, positives="both")


@needs_rwku
def test_examples_from_real_rows(tmp_path: Path) -> None:
    data = tmp_path / "karl-marx"
    (data / "rows").mkdir(parents=True)
    for config in ("train_refusal_phi3", "forget_level1", "train_original_passage"):
        lines = (RWKU_DIR / f"{config}.jsonl").read_text(encoding="utf-8").split("\n")
        mine = [line for line in lines if line and json.loads(line)["subject"] == "Karl Marx"]
        (data / "rows" / f"{config}.jsonl").write_text("\n".join(mine), encoding="utf-8")
    dump_knowledge(Knowledge("Karl Marx", ["Karl Marx"], ["Trier"]), data / "knowledge.json")
    found = read_examples([data], "rwku")
    assert len(found.refusals) == 100
    assert len(found.ordinary) > 500
    with pytest.raises(UserError, match="no refusals"):
        read_examples([data], "world")
