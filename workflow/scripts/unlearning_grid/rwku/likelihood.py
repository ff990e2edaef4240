"""Stage: what a policy finds likely: membership texts, answer letters, answer choices.

One row per text or question, with the raw numbers; `rwku.score` turns them into scores. Sets are
kept one by one, as in `generate.greedy`.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from unlearning_grid.data.prompts import read_prompts
from unlearning_grid.models.likelihood import (
    next_token_logprobs,
    score_continuations,
    study_text_losses,
)
from unlearning_grid.models.policy import Policy
from unlearning_grid.runtime.job import Job
from unlearning_grid.runtime.kept import kept_table
from unlearning_grid.rwku.conventions import MAX_TEXT_TOKENS
from unlearning_grid.rwku.membership import scores

log = logging.getLogger(__name__)

STUDY_ROWS = 64
"""Texts in a batch of the study's evaluation on H100s, on which its membership losses depend."""


def score(job: Job) -> dict[str, Any]:
    """Write "mia", "general" and "truthfulness". Inputs: prompts, policy, model."""
    policy = Policy(job)
    measures: dict[str, Callable[[Job, Policy, Any], Any]] = {
        "mia": _membership,
        "general": _letters,
        "truthfulness": _choices,
    }
    sets = {name: read_prompts(job, f"rwku-{name}") for name in measures}
    total, counts = sum(map(len, sets.values())), {}
    for name, measure in measures.items():
        rows = sets[name]
        job.progress(sum(counts.values()), total, "texts")
        log.info("rwku-%s: %d rows", name, len(rows))
        identity = {"rows": rows.to_json(orient="split")}
        table = kept_table(job, name, identity, lambda m=measure, r=rows: m(job, policy, r))
        table.to_parquet(job.outputs[name], index=False)
        counts[name] = len(table)
    return counts


def _tokens(column: Any) -> list[list[int]]:
    return [[int(token) for token in ids] for ids in column]


def _membership(job: Job, policy: Policy, rows: Any) -> Any:
    """Per text: the membership scores, its scored tokens, and the loss that the study computed.

    A text of fewer than two tokens has nothing to score: all its numbers are missing.
    """
    import pandas as pd

    texts = _tokens(rows["ids"])
    usable = [len(ids) > 1 for ids in texts]
    pad = policy.tokenizer.pad_token_id
    pairs = [(ids[:1], ids[1:]) for ids, fine in zip(texts, usable, strict=True) if fine]
    scored = iter(
        score_continuations(
            policy.model, pairs, pad_id=pad, batch_size=job.settings["batch_size"], moments=True
        )
    )
    found = []
    for text, fine in zip(rows["question"], usable, strict=True):
        one = next(scored) if fine else None
        values = (one.logprobs, one.mean, one.variance) if one else ([], [], [])
        found.append({"tokens": len(values[0]), **scores(*values, text)})
    losses: list[float] = []
    for _, part in rows.groupby("config", sort=False):
        stripped = [text.strip() or "." for text in part["question"]]  # as the study does
        ids = [policy.tokenizer(text)["input_ids"][:MAX_TEXT_TOKENS] for text in stripped]
        losses += study_text_losses(policy.model, ids, pad_id=pad, rows=STUDY_ROWS)
    kept = rows[["config", "prompt_id", "truncated"]].reset_index(drop=True)
    return pd.concat([kept, pd.DataFrame(found)], axis=1).assign(study_loss=losses)


def _letters(job: Job, policy: Policy, rows: Any) -> Any:
    """Per question: log-probability of each answer letter as the next token, in their order.

    Questions with four choices and with fewer are asked alike; only their own letters count.
    """
    kept = rows[["config", "prompt_id"]].reset_index(drop=True)
    values: list[Sequence[float]] = [[] for _ in range(len(rows))]
    prompts, candidates = _tokens(rows["ids"]), _tokens(rows["candidates"])
    for letters in sorted(set(map(tuple, candidates))):
        places = [i for i, own in enumerate(candidates) if tuple(own) == letters]
        found = next_token_logprobs(
            policy.model,
            [prompts[i] for i in places],
            list(letters),
            pad_id=policy.tokenizer.pad_token_id,
            batch_size=job.settings["batch_size"],
        )
        for place, logprobs in zip(places, found, strict=True):
            values[place] = logprobs
    return kept.assign(logprobs=values)


def _choices(job: Job, policy: Policy, rows: Any) -> Any:
    """Per question: its choices and the summed log-probability of each, in nats."""
    pairs, owners = [], []
    for place, (ids, choices) in enumerate(zip(rows["ids"], rows["choice_ids"], strict=True)):
        for choice in choices:
            pairs.append(([int(t) for t in ids], [int(t) for t in choice]))
            owners.append(place)
    scored = score_continuations(
        policy.model,
        pairs,
        pad_id=policy.tokenizer.pad_token_id,
        batch_size=job.settings["batch_size"],
    )
    sums: list[list[float]] = [[] for _ in range(len(rows))]
    for place, one in zip(owners, scored, strict=True):
        sums[place].append(float(sum(one.logprobs)))
    kept = rows[["config", "prompt_id", "choices"]].reset_index(drop=True)
    return kept.assign(logprobs=sums)
