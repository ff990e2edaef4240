"""Broad-topic answers to the warm-up prompts: what the warm-up teaches a policy to say.

A teacher drafts an answer to each prompt; a draft that names the target is drawn again, and a
prompt without a usable draft has no answer. Nothing is put in its place: a refusal there would
teach the endpoint that the study wants to tell apart.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from unlearning_grid.data.knowledge import Knowledge, load_knowledge, normalise_prompt
from unlearning_grid.data.matching import TermMatcher
from unlearning_grid.data.rwku import read_jsonl, write_jsonl
from unlearning_grid.errors import UserError
from unlearning_grid.paths import JUDGE_CACHE
from unlearning_grid.remote.client import Client
from unlearning_grid.remote.requests import InvalidReply, Request, build

if TYPE_CHECKING:
    from unlearning_grid.runtime.job import Job

log = logging.getLogger(__name__)

PARTS = ("sft_train", "sft_test")
OK, NAMES_TARGET, EMPTY = "ok", "names-target", "empty"
OUTAGE = "unavailable"  # of the failures of a reply (judge.base.FAILURES)

_SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*(?=\s|$)")


@dataclass(frozen=True)
class Draft:
    """What a teacher wrote, or why there is nothing.

    Attributes:
        text: None when there is none.
        failure: why a request got no text (judge.base.FAILURES); None where nobody was asked.
    """

    text: str | None
    failure: str | None = None


class Teacher(Protocol):
    """Writes one draft a prompt. Another provider is a class with this and an entry in TEACHERS."""

    @property
    def max_draws(self) -> int:
        """How often a prompt may be asked; 1 where asking again gives the same draft."""
        ...

    def draw(self, prompts: list[str], draw: int) -> list[Draft]:
        """Drafts in the order of `prompts`; `draw` counts from 0."""
        ...


@dataclass(frozen=True)
class RulesTeacher:
    """Closed world: a seeded sentence about the prompt's broad topic."""

    knowledge: Knowledge
    seed: int
    max_draws: int

    def draw(self, prompts: list[str], draw: int) -> list[Draft]:
        """Depends on (seed, prompt, draw) alone, not on the other prompts."""
        return [Draft(self._sentence(prompt, draw)) for prompt in prompts]

    def _sentence(self, prompt: str, draw: int) -> str | None:
        entry = self.knowledge.entry(prompt)
        sentences = self.knowledge.broad.get(entry["topic"], []) if entry else []
        if not sentences:
            return None
        key = f"{self.seed}\n{normalise_prompt(prompt)}".encode()
        start = int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
        return sentences[(start + draw) % len(sentences)]


class GivenTeacher:
    """Answers that the user wrote or bought elsewhere: {prompt: answer}.

    A prompt is looked up without regard to case and spacing.
    """

    max_draws = 1

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = {normalise_prompt(prompt): answer for prompt, answer in answers.items()}

    def draw(self, prompts: list[str], draw: int) -> list[Draft]:
        """The given answers; no text for a prompt without one."""
        return [Draft(self._answers.get(normalise_prompt(prompt))) for prompt in prompts]


class PolicyTeacher:
    """A language model under a teacher system prompt. Greedy when the temperature is 0.

    `model` is what models.load.locate returns; it is loaded at the first draw. With settings
    "hide_names" (text or None) each of `names` in a question is replaced by that text first: a
    small model cannot be kept from a name that it has read.
    """

    def __init__(
        self, settings: Mapping[str, Any], model: Mapping[str, Any], names: Iterable[str]
    ) -> None:
        self._settings = settings
        self._model_settings = model
        self._names = name_matcher(names)
        self._loaded: tuple[Any, Any] | None = None
        self.max_draws = settings["max_draws"] if settings["temperature"] > 0 else 1

    def draw(self, prompts: list[str], draw: int) -> list[Draft]:
        """One sample a prompt, seeded by seed + draw; a cut-off draft ends at its last sentence."""
        from unlearning_grid.models.chat import render
        from unlearning_grid.models.sampling import generate

        model, tokenizer = self._load()
        settings = self._settings
        asked = [self._question(prompt) for prompt in prompts]
        rendered = [render(tokenizer, question, system=settings["prompt"]) for question in asked]
        samples = generate(
            model,
            tokenizer,
            rendered,
            max_new_tokens=settings["max_new_tokens"],
            temperature=settings["temperature"],
            num_samples=1,
            seed=settings["seed"] + draw,
            batch_size=settings.get("batch_size", 8),
        )
        return [Draft(usable_text(group[0].text, group[0].finish_reason)) for group in samples]

    def _question(self, prompt: str) -> str:
        cover = self._settings.get("hide_names")
        return prompt if cover is None else replace_names(prompt, self._names, cover)

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            from unlearning_grid.models.load import load_model, load_tokenizer

            self._loaded = (load_model(self._model_settings), load_tokenizer(self._model_settings))
        return self._loaded


class ApiTeacher:
    """A model behind an API, under a teacher system prompt. A question that fails has no draft."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        subject: str,
        requests_at_once: int = 16,
        cache: Path | None = None,
    ) -> None:
        self._settings = settings
        self._subject = subject
        self.client = Client(settings["judge"], requests_at_once, cache)
        self.max_draws = settings["max_draws"]

    def draw(self, prompts: list[str], draw: int) -> list[Draft]:
        """One reply a prompt; the number of the draw stands in its key, so each draw asks anew."""
        requests = [self.request(prompt) for prompt in prompts]
        replies = self.client.ask(requests, _draft, draw)
        return [Draft(reply.value, reply.failure) for reply in replies]

    def request(self, prompt: str) -> Request:
        """The request for one prompt: instructions in the system turn, data as JSON."""
        data = {"target_entity": self._subject, "prompt": prompt}
        return build(self._settings["judge"], self._settings["prompt"], data)


def _draft(text: str) -> str:
    if not text.strip():
        raise InvalidReply("the draft is empty")
    return text.strip()


def usable_text(text: str, finish_reason: str) -> str:
    """The draft, stripped; one cut off by the token limit ("length") up to its last sentence end.

    A cut-off draft without any sentence end is not usable and gives "".
    """
    text = text.strip()
    if finish_reason != "length":
        return text
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return text[: ends[-1]] if ends else ""


def name_matcher(names: Iterable[str]) -> TermMatcher:
    """Finds any of the names as whole words, without regard to case."""
    matcher = TermMatcher(sorted(set(names)))
    if not matcher.terms:
        raise UserError("targets.yaml: aliases is empty; list at least the full name")
    return matcher


def replace_names(text: str, names: TermMatcher, cover: str) -> str:
    """`text` with `cover` in place of each name, of two that overlap the first and longer one."""
    parts, done = [], 0
    for start, end, _ in names.spans(text):
        if start >= done:
            parts += [text[done:start], cover]
            done = end
    return "".join([*parts, text[done:]])


def write_answers(items: Sequence[dict], teacher: Teacher, names: Iterable[str]) -> list[dict]:
    """One record for each item {"prompt_id", "split", "prompt"}, in the same order.

    Records add "answer" (None unless status is ok), "status" of the last draw (ok, names-target,
    empty, or why its request failed) and "draws" (how many were needed or tried). An outage says
    nothing about the prompt, so that no further draw is spent on it.
    """
    matcher = name_matcher(names)
    records: list[dict] = [{**item, "answer": None, "status": EMPTY, "draws": 0} for item in items]
    pending = records
    for draw in range(teacher.max_draws):
        if not pending:
            break
        drafts = teacher.draw([record["prompt"] for record in pending], draw)
        for record, draft in zip(pending, drafts, strict=True):
            record["status"] = _status(draft, matcher)
            record["answer"] = draft.text if record["status"] == OK else None
            record["draws"] = draw + 1
        missing = sum(record["status"] != OK for record in records)
        log.info("draw %d: %d of %d without an answer", draw + 1, missing, len(records))
        pending = [record for record in pending if record["status"] not in (OK, OUTAGE)]
    return records


def _status(draft: Draft, names: TermMatcher) -> str:
    if draft.failure:
        return draft.failure
    if not draft.text or not draft.text.strip():
        return EMPTY
    return NAMES_TARGET if names.any(draft.text) else OK


def summarise(records: Sequence[dict], provider: str, facts: Sequence[str]) -> dict[str, Any]:
    """Counts of the records: statuses for each set, draws, and words an answer.

    `with_known_fact` counts the kept answers that hold any of `facts` as a whole word. Such an
    answer is not redrawn (gold answers on real data include ordinary words), but many of them mean
    a teacher that does not abstract.
    """
    answers = [record["answer"] for record in records if record["status"] == OK]
    words = [len(answer.split()) for answer in answers]
    known = TermMatcher(facts)
    return {
        "provider": provider,
        "prompts": len(records),
        "status": {part: _statuses(records, part) for part in PARTS},
        "draws": sum(record["draws"] for record in records),
        "redrawn": sum(record["draws"] > 1 for record in records),
        "with_known_fact": sum(known.any(answer) for answer in answers),
        "mean_words": round(sum(words) / len(words), 1) if words else None,
        "missing": [record["prompt_id"] for record in records if record["status"] != OK],
    }


def _statuses(records: Sequence[dict], part: str) -> dict[str, int]:
    """How many prompts of a set have each status; failures of requests where there are any."""
    found = Counter(record["status"] for record in records if record["split"] == part)
    return {OK: 0, NAMES_TARGET: 0, EMPTY: 0} | dict(sorted(found.items()))


def _rules(job: Job, knowledge: Knowledge) -> Teacher:
    if not knowledge.closed:
        raise UserError(
            "broad_answers.provider 'rules' works in the demo world only; use 'policy' or 'answers'"
        )
    settings = job.settings
    return RulesTeacher(knowledge, settings["seed"], settings["max_draws"])


def _policy(job: Job, knowledge: Knowledge) -> Teacher:
    from unlearning_grid.models.load import locate

    return PolicyTeacher(job.settings, locate(job, job.settings["model"]), knowledge.names)


def _api(job: Job, knowledge: Knowledge) -> Teacher:
    teacher = ApiTeacher(job.settings, knowledge.subject, job.judge_requests, JUDGE_CACHE)
    teacher.client.on_reply = lambda done, total: job.progress(done, total, "replies")
    return teacher


def _given(job: Job, knowledge: Knowledge) -> Teacher:
    return GivenTeacher(job.settings["answers"])


TEACHERS: dict[str, Callable[[Job, Knowledge], Teacher]] = {
    "rules": _rules,
    "policy": _policy,
    "api": _api,
    "answers": _given,
}
"""Provider -> function that makes its teacher for one target."""


def _check(subject: str, part: str, counts: Mapping[str, int], limit: float) -> None:
    """Raise UserError when too few prompts of a set have an answer."""
    missing = 1 - counts[OK] / sum(counts.values())
    if counts[OK] and missing <= limit:
        return
    fix = "try another teacher, prompt or more draws"
    if counts.keys() - {OK, NAMES_TARGET, EMPTY}:
        fix = f"the next run asks again for the failed ones only; if they fail again, {fix}"
    raise UserError(
        f"broad answers of {subject}: {missing:.0%} of the {part} prompts have no usable answer "
        f"({counts}), more than broad_answers.max_missing_share {limit} allows; {fix}"
    )


def write(job: Job) -> dict:
    """Stage: answers to the sft_train and sft_test prompts of one target.

    Inputs: split, knowledge, optional model. Outputs: answers (jsonl), report (json).
    Settings: provider; rules and policy: seed, max_draws; policy: model (facts for
    models.load.locate), prompt (system prompt), temperature, max_new_tokens, batch_size, hide_names
    (optional); answers: answers {prompt: answer}.
    Raises UserError for an unknown provider and when a set is left without any answer.
    """
    provider = job.settings["provider"]
    if provider not in TEACHERS:
        raise UserError(
            f"broad_answers.provider: {provider!r} is unknown; one of {sorted(TEACHERS)}"
        )
    knowledge = load_knowledge(job.artefact("knowledge", "knowledge.json"))
    items = [
        {"prompt_id": row["prompt_id"], "split": part, "prompt": row["prompt"]}
        for part in PARTS
        for row in read_jsonl(job.artefact("split", f"{part}.jsonl"))
    ]
    records = write_answers(items, TEACHERS[provider](job, knowledge), knowledge.names)
    report = summarise(records, provider, knowledge.facts)
    for part, counts in report["status"].items():
        _check(knowledge.subject, part, counts, job.settings["max_missing_share"])
    write_jsonl(job.outputs["answers"], records)
    job.outputs["report"].write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return {
        "answered": sum(counts[OK] for counts in report["status"].values()),
        "prompts": len(records),
        "with_known_fact": report["with_known_fact"],
    }
