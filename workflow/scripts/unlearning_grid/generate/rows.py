"""Completions of prompt sets, row by row: kept as they come, made by the configured engine.

A row is one prompt under one decoding, with one seed where it is sampled. Rows are kept by what
they depend on, so that a killed job goes on where it was, and a longer set or more samples generate
only what is new.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.generate.backend import Backend, Decoding
from unlearning_grid.generate.registry import BACKENDS
from unlearning_grid.models.load import context_window
from unlearning_grid.models.policy import Policy
from unlearning_grid.models.sampling import Completion
from unlearning_grid.runtime.job import Job
from unlearning_grid.runtime.kept import Keep, kept_rows
from unlearning_grid.runtime.objects import load_object
from unlearning_grid.spec.canonical import digest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """Prompts that are decoded in one way.

    Attributes:
        name: of the kept rows; one job has each name once.
        rows: data frame with prompt_id and ids (token ids), and seed where the rows are sampled.
        decoding: how.
    """

    name: str
    rows: Any
    decoding: Decoding

    @cached_property
    def prompts(self) -> list[list[int]]:
        """Token ids of each row."""
        return [[int(token) for token in ids] for ids in self.rows["ids"]]

    @cached_property
    def seeds(self) -> list[int] | None:
        """One seed per row; None for a greedy part."""
        return self.rows["seed"].tolist() if "seed" in self.rows else None

    @property
    def keys(self) -> list[str]:
        """What each row depends on beside the decoding."""
        seeds = self.seeds or [None] * len(self.prompts)
        return [digest([ids, seed]) for ids, seed in zip(self.prompts, seeds, strict=True)]


@dataclass
class Engine:
    """The configured backend with one policy, started when the first row needs it."""

    job: Job
    policy: Policy
    parts: Sequence[Part]

    def __post_init__(self) -> None:
        check_lengths(self.parts, context_window(self.policy.where))

    @cached_property
    def backend(self) -> Backend:
        """The backend, started now if it was not."""
        make = load_object(BACKENDS[self.job.settings["backend"]])
        return make(self.job, self.policy, longest_of(self.parts))


def longest_of(parts: Sequence[Part]) -> int:
    """Tokens of the longest prompt with its completion."""
    return max(len(ids) + part.decoding.max_new_tokens for part in parts for ids in part.prompts)


def check_lengths(parts: Sequence[Part], window: int | None) -> None:
    """Raise UserError that names the first prompt that is empty or, with its completion, too long.

    Args:
        window: tokens that the model can read; None where it does not say.
    """
    for part in parts:
        room = None if window is None else window - part.decoding.max_new_tokens
        for prompt_id, ids in zip(part.rows["prompt_id"], part.prompts, strict=True):
            if not ids:
                raise UserError(f"{part.name}: prompt {prompt_id} is empty; correct the rows")
            if room is not None and len(ids) > room:
                raise UserError(
                    f"{part.name}: prompt {prompt_id} has {len(ids)} tokens, and with "
                    f"{part.decoding.max_new_tokens} new ones it exceeds the model's context of "
                    f"{window}; lower max_new_tokens of that set in generate.sets, or leave the "
                    "prompt out (max_prompts)"
                )


def completed(job: Job, engine: Engine, parts: Sequence[Part]) -> list[Any]:
    """The rows of each part with completion, tokens and finish_reason; without ids.

    Args:
        job: whose kept rows these are; its settings and inputs are those of the engine's policy.
    """
    total, before, frames = sum(len(part.rows) for part in parts), 0, []
    for part in parts:
        log.info("%s: %d completions", part.name, len(part.rows))
        frames.append(_completed(job, engine, part, before, total))
        before += len(part.rows)
        job.progress(before, total, "completions")
    return frames


def _completed(job: Job, engine: Engine, part: Part, before: int, total: int) -> Any:
    def make(missing: list[int], keep: Keep) -> None:
        there = len(part.rows) - len(missing)

        def done(place: int, completion: Completion) -> None:
            nonlocal there
            there += 1
            keep(missing[place], vars(completion))
            job.progress(before + there, total, "completions")

        prompts = [part.prompts[place] for place in missing]
        seeds = part.seeds and [part.seeds[place] for place in missing]
        engine.backend.complete(prompts, seeds, part.decoding, done)

    identity = {"decoding": part.decoding.facts, "backend": job.settings["backend"]}
    rows = kept_rows(job, part.name, identity, part.keys, make)
    return part.rows.drop(columns="ids").assign(
        completion=[row["text"] for row in rows],
        tokens=[row["tokens"] for row in rows],
        finish_reason=[row["finish_reason"] for row in rows],
    )
