"""Stage: label rates of each cell's last rollouts, per cell and over targets.

A rate is the mean over the completions of a run; medians and quartiles are over targets. (The
study's script took them over targets and steps, which mixes a run's own noise into them.)
"""

from typing import Any

from unlearning_grid.runtime.job import Job
from unlearning_grid.tables.aggregate import by_target, evaluation_facts, over_targets
from unlearning_grid.tables.files import write_table
from unlearning_grid.tables.heldout import instruments, rates
from unlearning_grid.tables.results import Results, open_results


def build(job: Job) -> dict[str, Any]:
    """Write "table" and "csv" over targets, "targets" and "targets_csv" per cell."""
    frames = terminal_tables(open_results(job.inputs["plan"]))
    write_table(frames["terminal_audit"], job.outputs["table"], job.outputs["csv"])
    write_table(
        frames["terminal_audit_targets"], job.outputs["targets"], job.outputs["targets_csv"]
    )
    return {"rows": len(frames["terminal_audit"])}


def has_terminal_audits(results: Results) -> bool:
    """Whether the plan asks for them."""
    return any(folder.startswith("results/terminal/") for folder in results.plan["expected"])


def terminal_tables(results: Results) -> dict[str, Any]:
    """Tables by name: terminal_audit (medians) and terminal_audit_targets (one row a cell)."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for cell in results.plan["cells"]:
        policy, target = cell["policy"], cell["target"]
        path = results.file("terminal", policy, target, "labels.parquet")
        labels = pd.read_parquet(path) if path else None
        judges = instruments(labels, results.reward_instruments(policy).get("judge"))
        facts = evaluation_facts(results, {"policy": policy, "target": target})
        rows += [{**facts, **rate, **judges} for rate in rates(labels)]
    frame = by_target(rows)
    return {"terminal_audit": over_targets(frame, results), "terminal_audit_targets": frame}
