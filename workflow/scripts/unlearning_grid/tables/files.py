"""Writing tables: parquet for programs, CSV for people."""

from pathlib import Path
from typing import Any


def write_table(frame: Any, parquet: Path, csv: Path) -> None:
    """Write a data frame twice. CSV numbers have six significant digits."""
    frame.to_parquet(parquet, index=False)
    frame.to_csv(csv, index=False, float_format="%.6g", lineterminator="\n")
