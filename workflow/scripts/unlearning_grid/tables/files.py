"""Writing tables: parquet for programs, CSV for people."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unlearning_grid.runtime.job import Job


def write_table(frame: Any, parquet: Path, csv: Path) -> None:
    """Write a data frame twice. CSV numbers have six significant digits."""
    frame.to_parquet(parquet, index=False)
    frame.to_csv(csv, index=False, float_format="%.6g", lineterminator="\n")


def write_tables(job: Job, name: str, frames: Mapping[str, Any]) -> dict[str, Any]:
    """Write frames[name] as "table" and "csv", frames[name_targets] as "targets", "targets_csv"."""
    write_table(frames[name], job.outputs["table"], job.outputs["csv"])
    write_table(frames[f"{name}_targets"], job.outputs["targets"], job.outputs["targets_csv"])
    return {"rows": len(frames[name])}
