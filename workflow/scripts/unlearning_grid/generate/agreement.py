"""Whether the two engines say the same: greedy completions and the first token's log-probability.

In float32 they should, to the letter; in bfloat16 sums are rounded in another order, and where two
tokens are close to equal the completions part. That is counted here, row by row.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from unlearning_grid.generate.by_transformers import TransformersBackend
from unlearning_grid.generate.by_vllm import VllmBackend
from unlearning_grid.generate.rows import Part, longest_of
from unlearning_grid.models.likelihood import next_token_logprobs
from unlearning_grid.models.policy import Policy
from unlearning_grid.models.sampling import Completion, completion_of
from unlearning_grid.runtime.job import Job


def compare(job: Job, parts: Sequence[Part]) -> Any:
    """Data frame of one row per greedy row: part, prompt_id, both texts, and what differs.

    same: text, number of tokens and finish reason are equal. first_difference: place of the first
    character that differs, missing where the texts are equal. logprob_difference: of vLLM's first
    token, the absolute difference (nats) of the two engines' log-probabilities before any penalty.
    """
    import pandas as pd

    policy = Policy(job)
    longest = longest_of(parts)
    engines = TransformersBackend(job, policy, longest), VllmBackend(job, policy, longest)
    frames = []
    for part in parts:
        slow = _by_transformers(engines[0], part)
        fast, tokens, found = _by_vllm(engines[1], part)
        expected = _logprobs(policy, part, tokens)
        frames.append(
            pd.DataFrame(
                {
                    "part": part.name,
                    "prompt_id": list(part.rows["prompt_id"]),
                    "transformers": [one.text for one in slow],
                    "vllm": [one.text for one in fast],
                    "same": [one == other for one, other in zip(slow, fast, strict=True)],
                    "first_difference": pd.array(
                        [first_difference(a.text, b.text) for a, b in zip(slow, fast, strict=True)],
                        dtype="Int64",
                    ),
                    "logprob_difference": [
                        abs(a - b) for a, b in zip(found, expected, strict=True)
                    ],
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def with_dtype(job: Job, dtype: str) -> Job:
    """The same job with the base model in another precision."""
    settings = {**job.settings, "model": {**job.settings["model"], "dtype": dtype}}
    return replace(job, spec={**job.spec, "settings": settings}, operations={})


def first_difference(one: str, other: str) -> int | None:
    """Place of the first character that differs; None for equal texts."""
    if one == other:
        return None
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _by_transformers(engine: TransformersBackend, part: Part) -> list[Completion]:
    found: dict[int, Completion] = {}
    engine.complete(part.prompts, None, part.decoding, found.__setitem__)
    return [found[place] for place in range(len(part.prompts))]


def _by_vllm(engine: VllmBackend, part: Part) -> tuple[list[Completion], list[int], list[float]]:
    """Completions, and each one's first token with its log-probability."""
    outputs = dict(engine.outputs(part.prompts, None, part.decoding, logprobs=1))
    ordered = [outputs[place] for place in range(len(part.prompts))]
    ends = set(engine.ends)
    tokens = [output.token_ids[0] for output in ordered]
    return (
        [completion_of(engine.tokenizer, output.token_ids, ends) for output in ordered],
        tokens,
        [output.logprobs[0][token].logprob for output, token in zip(ordered, tokens, strict=True)],
    )


def _logprobs(policy: Policy, part: Part, tokens: Sequence[int]) -> list[float]:
    candidates = sorted(set(tokens))
    table = next_token_logprobs(
        policy.model, part.prompts, candidates, pad_id=policy.tokenizer.pad_token_id
    )
    return [row[candidates.index(token)] for row, token in zip(table, tokens, strict=True)]
