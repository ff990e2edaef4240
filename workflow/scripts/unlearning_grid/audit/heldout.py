"""Stage: label every held-out completion of one evaluation."""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.judge.labels import SIX
from unlearning_grid.rewards.build import load_detector, make_judge
from unlearning_grid.runtime.job import Job

log = logging.getLogger(__name__)


def audit(job: Job) -> dict[str, Any]:
    """Write "labels": one row per completion, with six labels, class, judge and detector.

    A label that the judge cannot give is missing, never 0.

    Inputs: completions, knowledge, detector (a trained one).
    Raises UserError when more verdicts failed than audit.max_missing_share allows.
    """
    import pandas as pd

    settings = job.settings
    table = pd.read_parquet(job.artefact("completions", "completions.parquet"))
    rows = table[table["set"] == "heldout"].reset_index(drop=True)
    texts = rows["completion"].tolist()
    probabilities = load_detector(job, settings["detector"]).probabilities(texts)
    judge = make_judge(job, settings["judge"], settings["subject"])
    labels: Any = rows[["prompt_id", "prompt", "completion", "tokens", "finish_reason"]].copy()
    with ThreadPoolExecutor(judge.workers) as pool:
        verdicts = list(pool.map(judge.audit, rows["prompt"], texts, probabilities))
    for name in SIX:
        labels[name] = pd.array([_get(v, name) for v in verdicts], dtype="boolean")
    labels["class"] = [_get(verdict, "class") for verdict in verdicts]
    labels["verdict"] = ["failed" if verdict is None else "ok" for verdict in verdicts]
    labels["refusal_probability"] = probabilities
    labels["detector"] = settings["detector"]["name"]
    labels["judge"] = judge_name(settings["judge"])
    failed = sum(verdict is None for verdict in verdicts)
    if failed > settings["max_missing_share"] * len(verdicts):
        raise UserError(
            f"{failed} of {len(verdicts)} verdicts of judge {settings['judge']['name']} failed, "
            f"more than audit.max_missing_share {settings['max_missing_share']} allows; run again "
            "to retry them"
        )
    labels.to_parquet(job.outputs["labels"], index=False)
    return {"completions": len(labels), "failed_verdicts": failed}


def judge_name(block: Mapping[str, Any]) -> str:
    """What tables show: the provider, and the model where there is one."""
    return ":".join(part for part in (block["provider"], block.get("model")) if part)


def _get(verdict: Mapping[str, Any] | None, name: str) -> Any:
    return None if verdict is None else verdict[name]
