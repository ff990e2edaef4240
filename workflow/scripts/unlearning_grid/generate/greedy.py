"""Stage: greedy completions of one policy for all prompt sets of one target.

`data.prompts` names the decodings. Sets and rows are kept as `generate.rows` tells.
"""

from collections.abc import Iterator
from typing import Any

from unlearning_grid.data.prompts import PLAIN, SHIPPED, read_facts, read_prompts
from unlearning_grid.generate.backend import Decoding
from unlearning_grid.generate.heldout import HELDOUT, heldout_prompts
from unlearning_grid.generate.rows import Engine, Part, completed
from unlearning_grid.models.policy import Policy
from unlearning_grid.runtime.job import Job

COLUMNS = (
    "set",
    "decoding",
    "prompt_id",
    "prompt",
    "rendered",
    "completion",
    "tokens",
    "finish_reason",
)


def generate(job: Job) -> dict[str, Any]:
    """Write "completions": one row per prompt and decoding, sets in order, prompts in source order.

    Inputs: split, prompts, policy (trained policies), model (built ones). A set is decoded a second
    time where settings["shipped_penalty"] names it and the model ships a penalty.
    """
    import pandas as pd

    policy = Policy(job)
    parts = greedy_parts(job, policy)
    frames = completed(job, Engine(job, policy, parts), parts)
    table: Any = pd.concat(frames, ignore_index=True)[list(COLUMNS)]
    table.to_parquet(job.outputs["completions"], index=False)
    return {
        "rows": len(table),
        "tokens": int(table["tokens"].sum()),
        "repetition_penalty": read_facts(job)["repetition_penalty"],
    }


def greedy_parts(job: Job, policy: Policy) -> list[Part]:
    """Every set under every decoding."""
    penalty = read_facts(job)["repetition_penalty"]
    return [
        Part(
            f"{name}-{decoding}",
            rows.assign(decoding=decoding),
            Decoding(settings["max_new_tokens"], repetition_penalty=value),
        )
        for name, settings in job.settings["sets"].items()
        for rows in [_rows(job, policy, name)]
        for decoding, value in _decodings(job, name, penalty)
    ]


def _decodings(job: Job, name: str, penalty: float) -> Iterator[tuple[str, float]]:
    yield PLAIN, 1.0
    if name in job.settings["shipped_penalty"] and penalty != 1.0:
        yield SHIPPED, penalty


def _rows(job: Job, policy: Policy, name: str) -> Any:
    """The prompts of a set: set, prompt_id, prompt, rendered, ids."""
    import pandas as pd

    if name == HELDOUT:
        limit = job.settings["sets"][HELDOUT]["max_prompts"]
        return heldout_prompts(job, policy.tokenizer, limit).assign(set=HELDOUT)
    table = read_prompts(job, name)
    return pd.DataFrame(
        {
            "set": name,
            "prompt_id": table["prompt_id"],
            "prompt": table["question"],
            "rendered": table["rendered"],
            "ids": table["ids"],
        }
    )
