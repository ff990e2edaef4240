"""Stage: sampled completions of the held-out questions, for leak@k.

Each sample has a seed of its own, made from the configured one, the prompt and its number: more
samples leave those that are there as they are, and no order or batch decides what is drawn.
"""

from typing import Any

from unlearning_grid.generate.backend import Decoding
from unlearning_grid.generate.heldout import heldout_prompts
from unlearning_grid.generate.rows import Engine, Part, completed
from unlearning_grid.models.policy import Policy
from unlearning_grid.runtime.job import Job
from unlearning_grid.spec.canonical import digest

COLUMNS = (
    "prompt_id",
    "prompt",
    "rendered",
    "sample",
    "seed",
    "completion",
    "tokens",
    "finish_reason",
)


def sample(job: Job) -> dict[str, Any]:
    """Write "samples": settings["samples"] rows per question, questions in source order.

    Inputs: split, policy (trained policies), model (built ones).
    """
    policy = Policy(job)
    parts = [sampled_part(job, policy)]
    (table,) = completed(job, Engine(job, policy, parts), parts)
    table[list(COLUMNS)].to_parquet(job.outputs["samples"], index=False)
    return {"rows": len(table), "tokens": int(table["tokens"].sum())}


def sampled_part(job: Job, policy: Policy) -> Part:
    """The questions, each settings["samples"] times, with their seeds."""
    import pandas as pd

    settings = job.settings
    asked = heldout_prompts(job, policy.tokenizer, settings["max_prompts"])
    count = settings["samples"]
    rows: Any = asked.loc[asked.index.repeat(count)].reset_index(drop=True)
    rows["sample"] = list(range(count)) * len(asked)
    rows["seed"] = pd.array(
        [
            sample_seed(settings["seed"], prompt_id, number)
            for prompt_id, number in zip(rows["prompt_id"], rows["sample"], strict=True)
        ],
        dtype="int64",
    )
    decoding = Decoding(settings["max_new_tokens"], settings["temperature"], settings["top_p"])
    return Part("samples", rows, decoding)


def sample_seed(seed: int, prompt_id: str, number: int) -> int:
    """A seed (below 2^63) for one sample of one prompt."""
    return int(digest([seed, prompt_id, number])[:16], 16) >> 1
