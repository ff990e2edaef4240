"""Tables as text, for the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError

COLUMNS = {
    "semantic_leakage": "leak",
    "broad_no_leak": "broad, no leak",
    "refusal": "refusal",
    "class_offtopic": "off topic",
    "class_misattributed": "misattributed",
    "class_garbled": "garbled",
}


def show(folder: Path) -> str:
    """The held-out table as text: one line per policy, medians over targets.

    Raises UserError when the table is not there.
    """
    import pandas as pd

    path = folder / "heldout_audit.parquet"
    if not path.is_file():
        raise UserError(f"{path} is not there yet; run the grid first (README.md)")
    table = pd.read_parquet(path)
    table = table[table["population"] == "evaluated"]
    rows = [["policy", *COLUMNS.values(), "N", "status"]]
    keys = ["kind", "size", "init", "reward"]
    groups: Any = table.groupby(keys, dropna=False, sort=False)
    for group, part in groups:
        medians = part.set_index("metric")["median"]
        cells = [_number(medians.get(metric)) for metric in COLUMNS]
        rows.append([_name(group), *cells, str(part["n"].max()), _status(part.iloc[0])])
    lines = layout(rows)
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def layout(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines: first column to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(w) for cell, w in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return lines


def _name(group: tuple[Any, ...]) -> str:
    return " ".join(str(part) for part in group if part == part and part is not None)


def _number(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) and value == value else "-"


def _status(row: Any) -> str:
    import pandas as pd

    names = ("learned", "no_learning", "failed", "not_run")
    found = {name: row[f"cells_{name}"] for name in names}
    kept = {name: int(n) for name, n in found.items() if not pd.isna(n) and n}
    return ", ".join(f"{n} {name.replace('_', '-')}" for name, n in kept.items()) or "baseline"
