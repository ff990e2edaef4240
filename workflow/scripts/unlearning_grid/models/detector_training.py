"""Stage: train a small refusal detector where the hub's one is out of reach.

The examples come from the targets' data: refusals against ordinary answers.  It is no substitute
for the study's detector and carries its own name, but it is a learned classifier with blind spots,
so rewards that use it can be gamed in the same way.
"""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearning_grid.data.knowledge import load_knowledge
from unlearning_grid.errors import UserError
from unlearning_grid.models.detector import RefusalDetector
from unlearning_grid.models.load import load_tokenizer, locate

if TYPE_CHECKING:
    from unlearning_grid.runtime.job import Job

log = logging.getLogger(__name__)

LABELS = {0: "refusal", 1: "non-refusal"}
BATCH = 48
HELD_OUT_SHARE = 0.2
MIN_DISTINCT = 10
"""With fewer distinct refusals none is held out whole; variants with a dropped word are."""
MAX_WORDS = 48
ROW_CONFIGS = (
    "forget_level1",
    "forget_level2",
    "forget_level3",
    "neighbor_level1",
    "neighbor_level2",
    "train_original_passage",
)


@dataclass(frozen=True)
class Examples:
    """Distinct texts of both classes, sorted."""

    refusals: list[str]
    ordinary: list[str]


@dataclass(frozen=True)
class Recipe:
    """Training settings: label_noise and word_dropout are shares of the training samples."""

    seed: int
    steps: int
    hidden_size: int
    label_noise: float
    word_dropout: float


def train(job: Job) -> dict[str, Any]:
    """Collect, train, measure on held-out texts.

    Inputs: "rows", manifests with knowledge.json or rows/ beside them; "tokenizer", the manifest of
    a model that a rule builds.  Outputs: "model" (folder), "report" (JSON).  Raises UserError below
    settings["min_accuracy"] or without examples.
    """
    settings = job.settings
    folders = [Path(manifest).parent for manifest in job.inputs["rows"]]
    examples = read_examples(folders, settings["positives"])
    tokenizer = load_tokenizer(locate(job, settings["tokenizer"], "tokenizer"))
    recipe = Recipe(**{name: settings[name] for name in Recipe.__dataclass_fields__})
    report = train_detector(examples, tokenizer, recipe, Path(job.outputs["model"]))
    text = json.dumps(report, indent=1, sort_keys=True)
    Path(job.outputs["report"]).write_text(text + "\n", encoding="utf-8")
    log.info("refusal detector: %s", text)
    if report["accuracy"] < settings["min_accuracy"]:
        raise UserError(
            f"settings.min_accuracy {settings['min_accuracy']}: the refusal detector reaches only "
            f"{report['accuracy']:.3f} on held-out texts; raise steps or lower label_noise"
        )
    return {"accuracy": report["accuracy"], "n": report["n"]}


def read_examples(folders: Sequence[Path], positives: str) -> Examples:
    """Examples from data folders of targets: knowledge.json, rows/{config}.jsonl, or neither.

    ``positives`` "world": the refusals of knowledge.json; "rwku": the outputs of
    train_refusal_phi3.  Ordinary texts are filled-in probes, bare answers, passages in sentences
    and the world's harmless sentences.
    """
    if positives not in ("world", "rwku"):
        raise UserError(f'settings.positives: {positives!r}; use "world" or "rwku"')
    refusals: list[str] = []
    ordinary: list[str] = []
    for folder in folders:
        if (folder / "knowledge.json").is_file():
            knowledge = load_knowledge(folder / "knowledge.json")
            refusals += knowledge.refusals
            ordinary += knowledge.sentences
            ordinary += [text for lines in knowledge.broad.values() for text in lines]
        for path in sorted((folder / "rows").glob("*.jsonl")):
            rows = _rows(path)
            if path.stem in ROW_CONFIGS:
                ordinary += [text for row in rows for text in ordinary_texts(row)]
            elif positives == "rwku" and path.stem == "train_refusal_phi3":
                refusals += [row["output"] for row in rows]
    return collect(refusals, ordinary)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def ordinary_texts(row: dict[str, Any]) -> list[str]:
    """Ordinary answers that a row gives: a filled-in cloze, a bare answer, or sentences."""
    if "text" in row:
        return re.split(r"(?<=[.!?])\s+", row["text"].strip())
    answer = str(row["answer"]).strip()
    if row.get("type") == "cloze" and "___" in row["query"]:
        filled = row["query"].replace("___", answer)
        return [filled[:1].upper() + filled[1:]]
    return [f"{answer[:1].upper()}{answer[1:]}."]


def collect(refusals: Iterable[str], ordinary: Iterable[str]) -> Examples:
    """Distinct, trimmed texts; a text in both classes counts as a refusal.

    Raises UserError if a class is empty.
    """
    first = {_trim(text) for text in refusals} - {""}
    second = {_trim(text) for text in ordinary} - {""} - first
    for name, texts in (("refusals", first), ("ordinary answers", second)):
        if not texts:
            raise UserError(f"refusal detector: no {name} among the rows; check settings.positives")
    return Examples(sorted(first), sorted(second))


def _trim(text: str) -> str:
    return " ".join(text.split()[:MAX_WORDS])


def drop_word(text: str, rng: random.Random) -> str:
    """The text without one of its words; texts of up to three words stay whole."""
    words = text.split()
    if len(words) > 3:
        words.pop(rng.randrange(len(words)))
    return " ".join(words)


def split_examples(examples: Examples, seed: int) -> tuple[Examples, Examples, str]:
    """Training part, held-out part, and what is held out.

    "texts": whole texts, none of which is trained on.  "variants", in a world of few sentences:
    all texts are trained on, and copies with one word dropped are held out.
    """
    rng = random.Random(seed)
    kind = "variants" if len(examples.refusals) < MIN_DISTINCT else "texts"
    parts: list[tuple[list[str], list[str]]] = []
    for texts in (examples.refusals, examples.ordinary):
        if kind == "variants":
            made = sorted({drop_word(text, rng) for text in texts for _ in range(8)} - set(texts))
            parts.append((texts, made or texts))
        else:
            shuffled = rng.sample(texts, len(texts))
            cut = round(HELD_OUT_SHARE * len(texts))
            parts.append((shuffled[cut:], shuffled[:cut] or texts))
    (train_yes, test_yes), (train_no, test_no) = parts
    return Examples(train_yes, train_no), Examples(test_yes, test_no), kind


def train_detector(
    examples: Examples, tokenizer: Any, recipe: Recipe, folder: Path
) -> dict[str, Any]:
    """Train a one-layer BERT, save it with its tokenizer, and report on held-out texts."""
    train_part, test_part, kind = split_examples(examples, recipe.seed)
    model = _new_model(recipe, tokenizer)
    _fit(model, tokenizer, train_part, recipe)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    detector = RefusalDetector.load(folder)
    _check_reload(tokenizer, detector.tokenizer, test_part)
    yes = detector.probabilities(test_part.refusals)
    no = detector.probabilities(test_part.ordinary)
    hit, false = sum(p >= 0.5 for p in yes), sum(p >= 0.5 for p in no)
    n = len(yes) + len(no)
    return {
        "held_out": kind,
        "n": n,
        "accuracy": round((hit + len(no) - false) / n, 4),
        "confusion": {
            "refusal": {"refusal": hit, "non-refusal": len(yes) - hit},
            "non-refusal": {"refusal": false, "non-refusal": len(no) - false},
        },
        "lowest_refusal": round(min(yes), 4),
        "highest_ordinary": round(max(no), 4),
    }


def _check_reload(before: Any, after: Any, part: Examples) -> None:
    """Raise UserError if the saved tokenizer encodes texts differently once loaded."""
    for text in [*part.refusals[:50], *part.ordinary[:50]]:
        if before(text)["input_ids"] != after(text)["input_ids"]:
            raise UserError(
                f"refusal detector: its tokenizer encodes {text!r} differently once reloaded; "
                "use another tokenizer"
            )


def _new_model(recipe: Recipe, tokenizer: Any) -> Any:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(recipe.seed)
    config = BertConfig(
        vocab_size=(len(tokenizer) + 63) // 64 * 64,
        hidden_size=recipe.hidden_size,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * recipe.hidden_size,
        max_position_embeddings=512,
        id2label=LABELS,
        label2id={label: i for i, label in LABELS.items()},
        pad_token_id=tokenizer.pad_token_id,
    )
    return BertForSequenceClassification(config)


def _fit(model: Any, tokenizer: Any, part: Examples, recipe: Recipe) -> None:
    """Balanced batches with dropped words and flipped labels, AdamW at 3e-3."""
    import torch

    rng = random.Random(recipe.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for step in range(recipe.steps):
        texts, labels = [], []
        for _ in range(BATCH):
            label = int(rng.random() < 0.5)
            text = rng.choice(part.ordinary if label else part.refusals)
            texts.append(drop_word(text, rng) if rng.random() < recipe.word_dropout else text)
            labels.append(1 - label if rng.random() < recipe.label_noise else label)
        encoded = tokenizer(
            texts,
            return_tensors="pt",
            padding=True,
            padding_side="right",
            truncation=True,
            max_length=128,
            return_token_type_ids=False,
        )
        loss = model(**encoded, labels=torch.tensor(labels)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == recipe.steps - 1:
            log.info("detector step %d of %d: loss %.3f", step, recipe.steps, float(loss.detach()))
    model.eval()
