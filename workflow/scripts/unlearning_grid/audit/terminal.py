"""Stage: label what a policy wrote in the last rollouts of its own training.

Rollouts are counted as rollouts: each was sampled once, whatever the number of optimizer steps that
used it (the study's script counted steps, and so the same completions twice).
"""

from typing import Any

from unlearning_grid.audit.label import label
from unlearning_grid.runtime.job import Job


def audit(job: Job) -> dict[str, Any]:
    """Write "labels": one row per completion of the last rollouts.

    Equal (prompt, completion) pairs are judged once and counted as often as they were written.
    Columns: rollout, step, group, sample, prompt_id, prompt, completion, tokens, finish_reason,
    reward, and those of audit.label.
    Settings: rollouts (how many), and those of audit.label. Input: trained.
    """
    import pandas as pd

    table = pd.read_parquet(job.artefact("trained", "rollouts.parquet"))
    last = sorted(table["rollout"].unique())[-job.settings["rollouts"] :]
    kept = ["rollout", "step", "group", "sample", "prompt_id", "prompt", "completion", "tokens"]
    rows: Any = table[table["rollout"].isin(last)].reset_index(drop=True)
    labels, facts = label(job, rows[[*kept, "finish_reason", "reward"]])
    labels.to_parquet(job.outputs["labels"], index=False)
    return {**facts, "rollouts": len(last)}
