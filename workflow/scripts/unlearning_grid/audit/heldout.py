"""Stage: label every held-out completion of one evaluation."""

from typing import Any

from unlearning_grid.audit.label import label
from unlearning_grid.errors import UserError
from unlearning_grid.runtime.job import Job


def audit(job: Job) -> dict[str, Any]:
    """Write "labels": one row per held-out completion, with its labels and who gave them.

    Columns: prompt_id, prompt, completion, tokens, finish_reason, and those of audit.label.
    Settings: decoding, max_prompts (the first ones only; None for all), and those of audit.label.
    """
    import pandas as pd

    table = pd.read_parquet(job.artefact("completions", "completions.parquet"))
    kept = ["prompt_id", "prompt", "completion", "tokens", "finish_reason"]
    chosen = (table["set"] == "heldout") & (table["decoding"] == job.settings["decoding"])
    rows: Any = table[chosen].reset_index(drop=True)[kept]
    if rows.empty:
        raise UserError(
            f"audit.decoding: no held-out completion is decoded {job.settings['decoding']!r}: "
            "the model ships no penalty, or generate.shipped_penalty lacks heldout; set it to plain"
        )
    if job.settings["max_prompts"] is not None:
        rows = rows.head(job.settings["max_prompts"])
    labels, facts = label(job, rows)
    labels.to_parquet(job.outputs["labels"], index=False)
    return facts
