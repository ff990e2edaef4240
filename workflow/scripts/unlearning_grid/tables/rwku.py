"""Stage: RWKU forget and neighbor scores, absolute and against the base model."""

from collections.abc import Sequence
from typing import Any

from unlearning_grid.runtime.job import Job
from unlearning_grid.tables.aggregate import by_target, evaluation_facts, over_targets
from unlearning_grid.tables.files import write_table
from unlearning_grid.tables.results import Results, open_results

SETS = {"forget": ("rwku-forget", (1, 2, 3)), "neighbor": ("rwku-neighbor", (1, 2))}
DIRECTION = {"forget": "lower", "neighbor": "higher"}


def build(job: Job) -> dict[str, Any]:
    """Write "table" and "csv" over targets, "targets" and "targets_csv" per evaluation."""
    frames = rwku_tables(open_results(job.inputs["plan"]))
    write_table(frames["rwku_core"], job.outputs["table"], job.outputs["csv"])
    write_table(frames["rwku_core_targets"], job.outputs["targets"], job.outputs["targets_csv"])
    return {"rows": len(frames["rwku_core"])}


def rwku_tables(results: Results) -> dict[str, Any]:
    """Tables by name: rwku_core (medians) and rwku_core_targets (one row a target)."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for evaluation in results.plan["evaluations"]:
        facts = evaluation_facts(results, evaluation)
        path = results.file("rwku", evaluation["policy"], evaluation["target"], "scores.parquet")
        scores = pd.read_parquet(path) if path else None
        rows += [{**facts, **score} for score in core_scores(scores)]
    frame = by_target(rows + _deltas(rows))
    return {"rwku_core": over_targets(frame, results), "rwku_core_targets": frame}


def core_scores(scores: Any | None) -> list[dict[str, Any]]:
    """ROUGE-L recall of each level, their unweighted mean, and the mean over rows.

    The mean of levels is missing where a level has no row; nothing is rounded.
    """
    found: list[dict[str, Any]] = []
    for name, (prompt_set, levels) in SETS.items():
        part = scores[scores["set"] == prompt_set] if scores is not None else None
        means = [_mean(part, level) for level in levels]
        whole = None if None in means else sum(means) / len(means)  # type: ignore[arg-type]
        values = {name: whole, f"{name}_rows": _mean(part, None)}
        values |= {f"{name}_level{n}": mean for n, mean in zip(levels, means, strict=True)}
        found += [
            {
                "metric": metric,
                "direction": DIRECTION[name],
                "value": value,
                "probes": 0 if part is None else len(part),
                "missing": int(value is None and scores is not None),
                "convention": "corrected",
            }
            for metric, value in values.items()
        ]
    return found


def _mean(part: Any | None, level: int | None) -> float | None:
    if part is None:
        return None
    rows = part if level is None else part[part["level"] == level]
    return float(rows["rouge_l_recall"].mean()) if len(rows) else None


def _deltas(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Trained minus base model of the same size and target; metric names end in _delta."""
    base = {
        (row["size"], row["target"], row["metric"]): row["value"]
        for row in rows
        if row["kind"] == "base"
    }
    found = []
    for row in rows:
        if row["kind"] == "base":
            continue
        before = base.get((row["size"], row["target"], row["metric"]))
        value = None if row["value"] is None or before is None else row["value"] - before
        name = f"{row['metric']}_delta"
        missing = int(value is None and row["probes"] > 0)
        found.append({**row, "metric": name, "value": value, "missing": missing})
    return found
