"""RWKU's sets as `render_rwku` wrote them, as the stages below read them.

Names of the two decodings: "plain" is greedy and nothing else; "shipped" adds the repetition
penalty that the model's own generation config holds, which the study's code had on without saying
so.
"""

import json
from typing import Any

from unlearning_grid.runtime.job import Job

PLAIN, SHIPPED = "plain", "shipped"


def read_prompts(job: Job, name: str) -> Any:
    """The prompts of a set; the first of each config where settings["sets"] limits them."""
    import pandas as pd

    table = pd.read_parquet(job.artefact("prompts", "prompts") / f"{name}.parquet")
    limit = job.settings["sets"][name]["max_prompts"]
    if limit is not None:
        table = table.groupby("config", sort=False).head(limit).reset_index(drop=True)
    return table


def read_facts(job: Job) -> dict[str, Any]:
    """What rendering found out: newline_is_token, repetition_penalty (rwku.prompts)."""
    path = job.artefact("prompts", "prompts") / "facts.json"
    return json.loads(path.read_text(encoding="utf-8"))
