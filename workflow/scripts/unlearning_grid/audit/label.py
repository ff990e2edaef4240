"""Labelling completions: what the held-out and the terminal audit share."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.judge.base import Judge, Verdict
from unlearning_grid.judge.labels import LABEL_SETS, SIX
from unlearning_grid.judge.names import judge_name, prompt_name
from unlearning_grid.judge.repetition import degenerate
from unlearning_grid.models.detector import load_detector
from unlearning_grid.rewards.build import make_judge
from unlearning_grid.runtime.job import Job


def label(job: Job, rows: Any) -> tuple[Any, dict[str, Any]]:
    """`rows` (with prompt and completion) with labels beside them, and facts about the verdicts.

    Added columns: the six labels (missing where the judge cannot tell or gave no verdict, never 0);
    class (embedded world); verdict ("ok" or why there is none) and request (key in the judge
    cache); degenerate (repeats itself or says nothing, whoever judges); refusal_probability;
    detector, judge, judge_entry, judge_prompt and replicate; refusal_by_detector (the label
    `refusal` repeats the detector); gold_recall_whole and gold_recall_part (judge.base).

    Settings: judge, labels, replicate, subject, detector (null: none, and its columns are missing),
    max_missing_share. Inputs: knowledge (a judge by rules), detector (a trained one).
    Raises UserError when more verdicts failed than max_missing_share allows.
    """
    import pandas as pd

    settings, block = job.settings, job.settings["judge"]
    texts = rows["completion"].tolist()
    pairs = list(zip(rows["prompt"].tolist(), texts, strict=True))
    detector = settings["detector"]
    probabilities: Sequence[float | None] = [None] * len(texts)
    if detector is not None:
        probabilities = load_detector(job, detector).probabilities(texts)
    judge = make_judge(job, block, settings["subject"], settings["replicate"])
    _tell_progress(job, judge)
    verdicts = judge.audit(pairs, LABEL_SETS[settings["labels"]], probabilities)
    failed = Counter(v.failure for v in verdicts if v.failure is not None)
    _check(failed, len(verdicts), settings)
    labelled = rows.assign(
        **label_columns(verdicts),
        degenerate=[degenerate(text) for text in texts],
        refusal_probability=pd.Series(probabilities, index=rows.index, dtype="float64"),
        detector=None if detector is None else detector["name"],
        judge=judge_name(block),
        judge_prompt=prompt_name(block),
        replicate=settings["replicate"],
        judge_entry=block["name"],
        refusal_by_detector="refusal" in judge.from_detector,
        **{
            f"gold_recall_{form}": pd.array([judge.gold_recall.get(form)] * len(rows), "Float64")
            for form in ("whole", "part")
        },
    )
    return labelled, {
        "completions": len(labelled),
        "failed_verdicts": sum(failed.values()),
        "failures": dict(sorted(failed.items())),
        "requests": dict(sorted(judge.counts.items())),
    }


def _tell_progress(job: Job, judge: Judge) -> None:
    """Have a judge that asks a server tell how many replies came."""
    client = getattr(judge, "client", None)
    if client is not None:
        client.on_reply = lambda done, total: job.progress(done, total, "replies")


def label_columns(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The six labels, class, verdict and request of each verdict, as columns."""
    import pandas as pd

    columns: dict[str, Any] = {
        name: pd.array([(v.labels or {}).get(name) for v in verdicts], dtype="boolean")
        for name in SIX
    }
    columns["class"] = pd.array([v.kind for v in verdicts], dtype="string")
    columns["verdict"] = [v.failure or "ok" for v in verdicts]
    columns["request"] = pd.array([v.request for v in verdicts], dtype="string")
    return columns


def _check(failed: Counter[str], asked: int, settings: Mapping[str, Any]) -> None:
    if sum(failed.values()) > settings["max_missing_share"] * asked:
        raise UserError(
            f"{sum(failed.values())} of {asked} verdicts of judge {settings['judge']['name']} "
            f"failed ({dict(sorted(failed.items()))}), more than audit.max_missing_share "
            f"{settings['max_missing_share']} allows; run again: verdicts that were given are kept "
            "and only the others are asked for"
        )
