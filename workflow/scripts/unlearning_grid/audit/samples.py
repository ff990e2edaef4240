"""Stage: label one evaluation's sampled completions, and its greedy ones by the same judge.

A policy that looks clean under greedy decoding may leak when it is sampled. To say so, one
instrument must look at both.
"""

from typing import Any

from unlearning_grid.audit.label import label
from unlearning_grid.data.prompts import PLAIN
from unlearning_grid.runtime.job import Job

GREEDY, SAMPLED = "greedy", "sampled"


def audit(job: Job) -> dict[str, Any]:
    """Write "labels": one row per completion, greedy ones first, then samples prompt by prompt.

    Columns: decoding ("greedy" or "sampled"), prompt_id, prompt, sample (missing for greedy),
    completion, tokens, finish_reason, and those of audit.label.
    The greedy ones are those of the prompts that were sampled. Settings: those of audit.label.
    """
    import pandas as pd

    greedy = pd.read_parquet(job.artefact("completions", "completions.parquet"))
    chosen = (greedy["set"] == "heldout") & (greedy["decoding"] == PLAIN)
    samples = pd.read_parquet(job.artefact("samples", "samples.parquet"))
    asked = list(samples["prompt_id"].unique())
    rows: Any = pd.concat(
        [
            greedy[chosen & greedy["prompt_id"].isin(asked)].assign(decoding=GREEDY, sample=None),
            samples.assign(decoding=SAMPLED),
        ],
        ignore_index=True,
    )
    rows["sample"] = rows["sample"].astype("Int64")
    kept = ["decoding", "prompt_id", "prompt", "sample", "completion", "tokens", "finish_reason"]
    labels, facts = label(job, rows[kept])
    labels.to_parquet(job.outputs["labels"], index=False)
    return facts
