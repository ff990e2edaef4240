"""The held-out questions as a policy is asked them."""

from typing import Any

from unlearning_grid.data.rwku import read_jsonl
from unlearning_grid.models.chat import render
from unlearning_grid.runtime.job import Job

HELDOUT = "heldout"


def heldout_prompts(job: Job, tokenizer: Any, limit: int | None) -> Any:
    """Data frame of the first `limit` questions (None: all): prompt_id, prompt, rendered, ids."""
    import pandas as pd

    rows = read_jsonl(job.artefact("split", "heldout.jsonl"))[:limit]
    rendered = [render(tokenizer, row["prompt"]) for row in rows]
    return pd.DataFrame(
        {
            "prompt_id": [row["prompt_id"] for row in rows],
            "prompt": [row["prompt"] for row in rows],
            "rendered": rendered,
            "ids": tokenizer(rendered, add_special_tokens=False)["input_ids"],
        }
    )
