"""Stage: every cell of the grid with its status, whatever became of it."""

from typing import Any

from unlearning_grid.paths import policy_dir, stage_dir
from unlearning_grid.runtime.job import Job
from unlearning_grid.tables.files import write_table
from unlearning_grid.tables.results import CURRENT, Results, open_results

STAGES = ("completions", "likelihoods", "audit", "rwku")


def build(job: Job) -> dict[str, Any]:
    """Write "table" and "csv"."""
    frame = cells_table(open_results(job.inputs["plan"]))
    write_table(frame, job.outputs["table"], job.outputs["csv"])
    return {"cells": len(frame), **frame["status"].value_counts().sort_index().to_dict()}


def cells_table(results: Results) -> Any:
    """One row per cell: its facts, status, evidence, steps, active rate, and what was evaluated."""
    import pandas as pd

    rows = []
    for cell in results.cells:
        outcome = results.outcome(cell["policy"]) or {}
        folders = {stage: stage_dir(stage, cell["policy"], cell["target"]) for stage in STAGES}
        states = {stage: results.state(folder).status for stage, folder in folders.items()}
        row_of = [policy_dir(cell["policy"]), *folders.values()]
        accepted = dict.fromkeys(note for folder in row_of for note in results.accepted(folder))
        rows.append(
            {
                **{k: cell[k] for k in ("size", "target", "init", "reward", "seed", "policy")},
                "status": cell["status"],
                "steps": outcome.get("steps"),
                "planned_steps": outcome.get("planned_steps"),
                "first_epoch_active_rate": outcome.get("first_epoch_active_rate"),
                "evidence": cell["evidence"],
                "evaluated": all(status == CURRENT for status in states.values()),
                **{f"state_{stage}": status for stage, status in states.items()},
                "accepted": "; ".join(accepted) or None,
            }
        )
    frame = pd.DataFrame(rows)
    for name in ("steps", "planned_steps"):
        frame[name] = frame[name].astype("Int64")
    return frame
