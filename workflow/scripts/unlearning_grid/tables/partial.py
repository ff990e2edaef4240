"""Stage: the same tables and figures from what is there, every absent cell with its status."""

from typing import Any

from unlearning_grid.paths import REFUSAL_DETECTORS
from unlearning_grid.runtime.job import Job
from unlearning_grid.tables.agreement import agreement_table
from unlearning_grid.tables.cells import cells_table
from unlearning_grid.tables.dynamics import draw, dynamics_points
from unlearning_grid.tables.files import write_table
from unlearning_grid.tables.heldout import heldout_tables
from unlearning_grid.tables.leak import has_sampled_audits, leak_tables
from unlearning_grid.tables.leak_figure import draw as draw_leaks
from unlearning_grid.tables.leak_figure import leak_points
from unlearning_grid.tables.results import CURRENT, Results, open_results
from unlearning_grid.tables.rwku_core import rwku_core_tables
from unlearning_grid.tables.rwku_types import rwku_types_tables
from unlearning_grid.tables.rwku_utility import rwku_utility_tables
from unlearning_grid.tables.sampled import sampled_tables
from unlearning_grid.tables.terminal import has_terminal_audits, terminal_tables
from unlearning_grid.tables.training import training_table


def build(job: Job) -> dict[str, Any]:
    """Write "tables" and "figures", two folders with the names of the complete ones."""
    results = open_results(job.inputs["plan"], strict=False)
    cells, sampled = cells_table(results), has_sampled_audits(results)
    frames = {
        "cells": cells,
        "training": training_table(results),
        **heldout_tables(results),
        **(terminal_tables(results) if has_terminal_audits(results) else {}),
        **({**leak_tables(results), **sampled_tables(results)} if sampled else {}),
        "judge_agreement": agreement_table(results),
        **rwku_core_tables(results),
        **rwku_utility_tables(results),
        **rwku_types_tables(results),
    }
    frames |= _refusal_detectors(results)
    folder = job.outputs["tables"]
    folder.mkdir()
    for name, frame in frames.items():
        write_table(frame, folder / f"{name}.parquet", folder / f"{name}.csv")
    figures = job.outputs["figures"]
    figures.mkdir()
    points = dynamics_points(results)
    points.to_csv(figures / "training_dynamics.csv", index=False, float_format="%.6g")
    draw(points, figures / "training_dynamics.png", figures / "training_dynamics.pdf")
    if sampled:
        points = leak_points(results)
        points.to_csv(figures / "leak_at_k.csv", index=False, float_format="%.6g")
        draw_leaks(points, figures / "leak_at_k.png", figures / "leak_at_k.pdf")
    return {"cells": len(cells), **cells["status"].value_counts().sort_index().to_dict()}


def _refusal_detectors(results: Results) -> dict[str, Any]:
    """The detectors' table as it stands, if it is current: one job makes the whole of it."""
    import pandas as pd

    if results.state(REFUSAL_DETECTORS).status != CURRENT:
        return {}
    return {REFUSAL_DETECTORS.name: pd.read_parquet(REFUSAL_DETECTORS.with_suffix(".parquet"))}
