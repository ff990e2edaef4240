"""Stage: label rates of sampled completions, per evaluation and over targets.

The same rates as of the greedy ones (tables.heldout): at a temperature, garble and facts given to
the wrong person are frequent, and neither is a leak nor a useful answer.
"""

from typing import Any

from unlearning_grid.runtime.job import Job
from unlearning_grid.tables.aggregate import by_target, evaluation_facts, over_targets
from unlearning_grid.tables.files import write_tables
from unlearning_grid.tables.heldout import rates
from unlearning_grid.tables.leak import labelled
from unlearning_grid.tables.results import Results, open_results

BY = ("judge_entry", "metric")


def build(job: Job) -> dict[str, Any]:
    """Write "table" and "csv" over targets, "targets" and "targets_csv" per evaluation."""
    return write_tables(job, "sampled_audit", sampled_tables(open_results(job.inputs["plan"])))


def sampled_tables(results: Results) -> dict[str, Any]:
    """Tables by name: sampled_audit (medians) and sampled_audit_targets (one row an evaluation)."""
    rows: list[dict[str, Any]] = []
    for audit, labels, judges in labelled(results):
        facts = {**evaluation_facts(results, audit), "judge_entry": audit["judge"]}
        sampled = None if labels is None else labels[labels["decoding"] == "sampled"]
        rows += [{**facts, **rate, **judges} for rate in rates(sampled)]
    frame = by_target(rows, BY)
    return {"sampled_audit": over_targets(frame, results, BY), "sampled_audit_targets": frame}
