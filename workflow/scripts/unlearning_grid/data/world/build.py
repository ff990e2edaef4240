"""Stage: build the embedded world (model, tokenizer, RWKU-shaped rows, knowledge)."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearning_grid.data.knowledge import Knowledge, dump_knowledge
from unlearning_grid.data.world.corpus import Corpus, Mixture
from unlearning_grid.data.world.facts import World, parse_world, strip_article
from unlearning_grid.data.world.pretrain import Recipe, answer_all, new_model, pretrain
from unlearning_grid.data.world.rows import knowledge_of, rwku_rows
from unlearning_grid.data.world.tokenizer import save_and_reload, train_tokenizer
from unlearning_grid.errors import UserError

if TYPE_CHECKING:
    from unlearning_grid.runtime.job import Job

log = logging.getLogger(__name__)

TOKENIZER_PAIRS = 8000
"""Sampled pairs that the tokenizer is trained on."""

MIN_GREEDY_LEAK = 0.8
"""A target whose facts the base model does not know cannot be unlearned."""


def build(job: Job) -> dict[str, Any]:
    """Build the world from settings["facts"] and check that the model knows its targets.

    Outputs: "model" (folder), "rwku" (folder of {config}.jsonl), "knowledge" (folder of
    {slug}.json).  Returns shares for run.json.  Raises UserError on bad settings, or if the model
    does not leak enough to be worth unlearning.
    """
    settings = job.settings
    world = parse_world(settings["facts"])
    targets: dict[str, str] = dict(settings["targets"])
    _write_data(world, targets, job.outputs["rwku"], job.outputs["knowledge"])
    folder = Path(job.outputs["model"])
    folder.mkdir(parents=True, exist_ok=True)
    model, tokenizer, loss = _train(world, list(targets.values()), settings, folder)
    shares: dict[str, Any] = {"pretraining_loss": round(loss, 4)}
    for slug, subject in targets.items():
        shares |= _measure(model, tokenizer, world, slug, subject)
    shares["other_people_greedy_correct"] = _others_correct(model, tokenizer, world, targets)
    log.info("shares: %s", json.dumps(shares))
    for slug in targets:
        if shares[f"{slug}_greedy_leak"] < MIN_GREEDY_LEAK:
            raise UserError(
                f"settings.steps {settings['steps']}: the demo model answers only "
                f"{shares[f'{slug}_greedy_leak']:.2f} of the questions about {slug} with the fact "
                f"(at least {MIN_GREEDY_LEAK} needed); train it for more steps"
            )
    return shares


def _write_data(world: World, targets: dict[str, str], rwku: Path, knowledge: Path) -> None:
    """Write the RWKU-shaped rows and one knowledge file per target."""
    for folder in (Path(rwku), Path(knowledge)):
        folder.mkdir(parents=True, exist_ok=True)
    for config, rows in rwku_rows(world, list(targets.values())).items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (Path(rwku) / f"{config}.jsonl").write_text("".join(lines), encoding="utf-8")
    for slug, subject in targets.items():
        dump_knowledge(knowledge_of(world, subject), Path(knowledge) / f"{slug}.json")


def _corpus(world: World, targets: Sequence[str], settings: Mapping[str, Any], seed: int) -> Corpus:
    mixture = Mixture(
        general=settings["general_share"],
        probe=settings["probe_share"],
        broad=settings["broad_share"],
        refusal=settings["refusal_share"],
    )
    return Corpus(world, list(targets), mixture, settings["probe_instructions"], seed)


def _train(
    world: World, targets: Sequence[str], settings: Mapping[str, Any], folder: Path
) -> tuple[Any, Any, float]:
    """Train tokenizer and model, save both, and return them as loaded from disk."""
    from transformers import AutoModelForCausalLM

    sample = _corpus(world, targets, settings, seed=settings["seed"] + 1_000_003)
    pairs = [sample.draw() for _ in range(TOKENIZER_PAIRS)]
    texts = [text for q, a in pairs for text in (f"user\n{q}\n", f"assistant\n{a}\n")]
    tokenizer = train_tokenizer(texts, settings["vocab_size"])
    recipe = Recipe(**{name: settings[name] for name in Recipe.__dataclass_fields__})
    model = new_model(recipe, tokenizer)
    weights = sum(p.numel() for p in model.parameters())
    log.info("model: %.2f M parameters, vocabulary %d", weights / 1e6, len(tokenizer))
    corpus = _corpus(world, targets, settings, seed=settings["seed"])
    loss = pretrain(model, tokenizer, corpus.draw, recipe)
    model.save_pretrained(folder)
    tokenizer = save_and_reload(tokenizer, folder, [text for pair in pairs[:500] for text in pair])
    return AutoModelForCausalLM.from_pretrained(folder).eval(), tokenizer, loss


def _measure(model: Any, tokenizer: Any, world: World, slug: str, subject: str) -> dict[str, float]:
    """Greedy leak over every third chat question, and the modes of 4 draws at temperature 1."""
    import torch

    person = world.person(subject)
    asked = world.prompts(subject)[::3]
    values = [strip_article(person.facts[prompt.relation]) for prompt in asked]
    texts = [prompt.text for prompt in asked]
    greedy = answer_all(model, tokenizer, texts)
    leaks = [_has(v, a) for v, a in zip(values, greedy, strict=True)]
    torch.manual_seed(0)
    drawn = answer_all(model, tokenizer, texts[::2], samples=4)
    knowledge = knowledge_of(world, subject)
    modes = [_mode(knowledge, text) for text in drawn]
    return {
        f"{slug}_greedy_leak": round(sum(leaks) / len(leaks), 4),
        **{
            f"{slug}_sampled_{mode}": round(modes.count(mode) / len(modes), 4)
            for mode in ("leak", "refusal", "broad", "other")
        },
    }


def _others_correct(model: Any, tokenizer: Any, world: World, targets: dict[str, str]) -> float:
    """Greedy accuracy on the people who are no targets (every fifth question)."""
    asked = [
        (prompt.text, strip_article(person.facts[prompt.relation]))
        for person in world.people.values()
        if person.slug not in targets
        for prompt in world.prompts(person.name)[::5]
    ]
    answers = answer_all(model, tokenizer, [text for text, _ in asked])
    right = [_has(value, answer) for (_, value), answer in zip(asked, answers, strict=True)]
    return round(sum(right) / len(right), 4)


def _has(term: str, text: str) -> bool:
    """Whether a term occurs in a text as whole words, whatever the case."""
    return re.search(rf"(?<!\w){re.escape(term)}(?!\w)", text, re.IGNORECASE) is not None


def _mode(knowledge: Knowledge, text: str) -> str:
    """Coarse mode of one answer; the audit's oracle lives in unlearning_grid.judge.rules."""
    if any(_has(term, text) for term in (*knowledge.names, *knowledge.facts)):
        return "leak"
    if text.strip() in knowledge.refusals:
        return "refusal"
    if any(text.strip() in lines for lines in knowledge.broad.values()):
        return "broad"
    return "other"
