"""Metrics of a run as a tidy table: one row per step and name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

METRICS = {"step": "int", "epoch": "float", "name": "str", "value": "float"}

# Wall times and the trainer's summary of its own process would make two equal runs differ.
_LEFT_OUT = ("runtime", "per_second", "step_time", "total_flos", "train_loss")


def metric_rows(
    history: Sequence[dict[str, Any]], left_out: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Rows {step, epoch, name, value} of a Trainer's log history, sorted by step and name.

    Args:
        left_out: further names, or parts of names, to leave out.
    """
    without = (*_LEFT_OUT, *left_out)
    rows = {
        (line["step"], name): {
            "step": line["step"],
            "epoch": line.get("epoch"),
            "name": name,
            "value": None if value is None else float(value),
        }
        for line in history
        for name, value in line.items()
        if name not in ("step", "epoch") and not any(part in name for part in without)
    }
    return [rows[key] for key in sorted(rows)]


def write_parquet(rows: Sequence[dict[str, Any]], schema: dict[str, str], path: Path) -> None:
    """Write rows with the columns of `schema`, {name: str|int|float|bool}; no rows is fine."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    types = pa.schema([(name, kinds[kind]) for name, kind in schema.items()])
    pq.write_table(pa.Table.from_pylist(list(rows), schema=types), path)
