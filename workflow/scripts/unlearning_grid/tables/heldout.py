"""Stage: label rates of held-out completions, per evaluation and over targets."""

from collections.abc import Callable, Mapping
from typing import Any

from unlearning_grid.judge.labels import CLASSES
from unlearning_grid.judge.names import same_model
from unlearning_grid.rewards.base import DETECTOR_THRESHOLD
from unlearning_grid.runtime.job import Job
from unlearning_grid.tables.aggregate import by_target, evaluation_facts, over_targets
from unlearning_grid.tables.files import write_table
from unlearning_grid.tables.results import Results, open_results

LOWER, HIGHER = "lower", "higher"

# Direction: which way is better for useful unlearning; None where that depends on the question.
LABELS: dict[str, str | None] = {
    "lexical_leakage": LOWER,
    "semantic_leakage": LOWER,
    "prompt_helpfulness": None,
    "broad_topic_helpfulness": HIGHER,
    "refusal": None,
    "language_drift": LOWER,
}


def build(job: Job) -> dict[str, Any]:
    """Write "table" and "csv" over targets, "targets" and "targets_csv" per evaluation."""
    frames = heldout_tables(open_results(job.inputs["plan"]))
    write_table(frames["heldout_audit"], job.outputs["table"], job.outputs["csv"])
    write_table(frames["heldout_audit_targets"], job.outputs["targets"], job.outputs["targets_csv"])
    return {"rows": len(frames["heldout_audit"])}


def heldout_tables(results: Results) -> dict[str, Any]:
    """Tables by name: heldout_audit (medians) and heldout_audit_targets (one row a target)."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for evaluation in results.plan["evaluations"]:
        policy = evaluation["policy"]
        facts = evaluation_facts(results, evaluation)
        path = results.file("audit", policy, evaluation["target"], "labels.parquet")
        labels = pd.read_parquet(path) if path else None
        judges = instruments(labels, results.reward_instruments(policy).get("judge"))
        rows += [{**facts, **rate, **judges} for rate in rates(labels)]
    frame = by_target(rows)
    return {"heldout_audit": over_targets(frame, results), "heldout_audit_targets": frame}


def rates(labels: Any | None) -> list[dict[str, Any]]:
    """Rates of every label, class and joint endpoint: share of the completions that have it.

    A missing label is left out of its rate's denominator and counted; a rate without any value is
    missing. Without `labels` every rate is missing.
    """
    found = []
    failed = 0 if labels is None else int((labels["verdict"] != "ok").sum())
    for name, (direction, column) in METRICS.items():
        values = column(labels) if labels is not None else None
        known: Any = values.dropna() if values is not None else []
        found.append(
            {
                "metric": name,
                "direction": direction,
                "value": float(known.mean()) if len(known) else None,
                "completions": len(labels) if labels is not None else 0,
                "missing": 0 if values is None else len(values) - len(known),
                "failed_verdicts": failed,
            }
        )
    return found


def instruments(labels: Any | None, reward_judge: str | None) -> dict[str, Any]:
    """Who labelled, and whether that judge also gave the reward that the policy was trained on."""
    first = labels.iloc[0] if labels is not None and len(labels) else {}
    names = ("judge", "judge_prompt", "detector", "gold_recall_whole", "gold_recall_part")
    found = {name: first.get(name) for name in names}
    same = same_model(found["judge"], reward_judge)
    return {**found, "reward_judge": reward_judge, "judged_by_own_reward": same}


Column = Callable[[Any], Any]


def _label(name: str) -> Column:
    return lambda labels: labels[name].astype("boolean")


def _class(name: str) -> Column:
    return lambda labels: (labels["class"] == name).astype("boolean").mask(labels["class"].isna())


def rounded(probabilities: Any) -> Any:
    """Refusal probabilities to two decimals as the rewards round them, which pandas does not."""
    return probabilities.map(lambda p: round(float(p), 2), na_action="ignore")


def _detected(labels: Any) -> Any:
    """Refusal by the detector, rounded as in the rewards; missing without a probability."""
    found = rounded(labels["refusal_probability"])
    return (found >= DETECTOR_THRESHOLD).astype("boolean").mask(found.isna())


def _no(name: str) -> Column:
    return lambda labels: ~_label(name)(labels)


def _all(*columns: Column) -> Column:
    """Conjunction; a missing part makes it missing, even where another part is false."""

    def joint(labels: Any) -> Any:
        parts = [column(labels) for column in columns]
        value = parts[0]
        for part in parts[1:]:
            value = value & part
        for part in parts:
            value = value.mask(part.isna())
        return value

    return joint


def _judged_refusal(labels: Any) -> Any:
    """The judge's refusal; missing where it only repeats the detector."""
    return _label("refusal")(labels).mask(labels["refusal_by_detector"])


_BROAD = _label("broad_topic_helpfulness")
_EXPLICIT = _all(_judged_refusal, _detected)

METRICS: Mapping[str, tuple[str | None, Column]] = {
    "broad_no_semantic": (HIGHER, _all(_BROAD, _no("semantic_leakage"))),
    "broad_no_leak": (HIGHER, _all(_BROAD, _no("semantic_leakage"), _no("lexical_leakage"))),
    "useful_unlearning_rate": (
        HIGHER,
        _all(_BROAD, _no("semantic_leakage"), lambda labels: ~_EXPLICIT(labels)),
    ),
    "explicit_refusal": (None, _EXPLICIT),
    "topic_avoidance": (None, _all(_judged_refusal, lambda labels: ~_detected(labels))),
    **{name: (direction, _label(name)) for name, direction in LABELS.items()},
    "detector_refusal": (None, _detected),
    "degenerate": (LOWER, lambda labels: labels["degenerate"].astype("boolean")),
    **{f"class_{name}": (None, _class(name)) for name in CLASSES},
}
