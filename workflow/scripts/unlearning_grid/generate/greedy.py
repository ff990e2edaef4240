"""Stage: greedy completions of one policy for all prompt sets of one target.

Sets are kept one by one, so that a killed job goes on with the next set, and a set that changes or
is added generates itself alone. The model is loaded when the first set needs it. `data.prompts`
names the decodings.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from unlearning_grid.data.prompts import PLAIN, SHIPPED, read_facts, read_prompts
from unlearning_grid.data.rwku import read_jsonl
from unlearning_grid.models.chat import render
from unlearning_grid.models.policy import Policy
from unlearning_grid.models.sampling import generate as complete
from unlearning_grid.runtime.job import Job
from unlearning_grid.runtime.kept import kept_table

log = logging.getLogger(__name__)

HELDOUT = "heldout"
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
    facts = read_facts(job)
    parts = [
        (rows, settings, decoding, penalty)
        for name, settings in job.settings["sets"].items()
        for rows in [_heldout(job, policy) if name == HELDOUT else _rwku(job, name)]
        for decoding, penalty in _decodings(job, name, facts["repetition_penalty"])
    ]
    total, frames = sum(len(rows) for rows, *_ in parts), []
    for rows, settings, decoding, penalty in parts:
        job.progress(sum(map(len, frames)), total, "prompts")
        log.info("%s, %s: %d prompts", rows["set"].iloc[0], decoding, len(rows))
        frames.append(_completed(job, policy, rows, settings, decoding, penalty))
    table: Any = pd.concat(frames, ignore_index=True)[list(COLUMNS)]
    table.to_parquet(job.outputs["completions"], index=False)
    return {
        "rows": len(table),
        "tokens": int(table["tokens"].sum()),
        "repetition_penalty": facts["repetition_penalty"],
    }


def _decodings(job: Job, name: str, penalty: float) -> Iterator[tuple[str, float]]:
    yield PLAIN, 1.0
    if name in job.settings["shipped_penalty"] and penalty != 1.0:
        yield SHIPPED, penalty


def _heldout(job: Job, policy: Policy) -> Any:
    """The held-out questions: set, prompt_id, prompt, rendered, ids."""
    import pandas as pd

    limit = job.settings["sets"][HELDOUT]["max_prompts"]
    rows = read_jsonl(job.artefact("split", "heldout.jsonl"))[:limit]
    rendered = [render(policy.tokenizer, row["prompt"]) for row in rows]
    return pd.DataFrame(
        {
            "set": HELDOUT,
            "prompt_id": [row["prompt_id"] for row in rows],
            "prompt": [row["prompt"] for row in rows],
            "rendered": rendered,
            "ids": policy.tokenizer(rendered, add_special_tokens=False)["input_ids"],
        }
    )


def _rwku(job: Job, name: str) -> Any:
    """The prompts of an RWKU set, with the same columns."""
    import pandas as pd

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


def _completed(
    job: Job, policy: Policy, rows: Any, settings: Mapping[str, Any], decoding: str, penalty: float
) -> Any:
    def make() -> Any:
        groups = complete(
            policy.model,
            policy.tokenizer,
            [list(map(int, ids)) for ids in rows["ids"]],
            max_new_tokens=settings["max_new_tokens"],
            batch_size=job.settings["batch_size"],
            repetition_penalty=penalty,
        )
        return rows.drop(columns="ids").assign(
            decoding=decoding,
            completion=[group[0].text for group in groups],
            tokens=[group[0].tokens for group in groups],
            finish_reason=[group[0].finish_reason for group in groups],
        )

    identity = {
        "settings": dict(settings),
        "penalty": penalty,
        "rows": rows.to_json(orient="split"),
    }
    return kept_table(job, f"{rows['set'].iloc[0]}-{decoding}", identity, make)
