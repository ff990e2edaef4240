"""Tables as text, for the terminal."""

import argparse
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.ops.columns import columns

COLUMNS = {
    "semantic_leakage": "leak",
    "broad_no_leak": "broad, no leak",
    "refusal": "refusal",
    "class_offtopic": "off topic",
    "class_misattributed": "misattributed",
    "class_garbled": "garbled",
}
KEYS = ["kind", "size", "init", "reward"]


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `show`."""
    parser = commands.add_parser("show", parents=[common], help="print the held-out table")
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> None:
    print("\nHeld-out completions, medians over targets\n")
    print(show(Path("results/tables")))
    here = Path.cwd() / "results"
    print(f"\nTables:  {here / 'tables'}\nFigures: {here / 'figures'}\nColumns: docs/outputs.md")


def show(folder: Path) -> str:
    """The held-out table as text: one line per policy, medians over targets; who labelled below.

    Where samples were audited, leak@k at the most samples stands beside the greedy leak rate.
    Raises UserError when the table is not there.
    """
    import pandas as pd

    path = folder / "heldout_audit.parquet"
    if not path.is_file():
        raise UserError(f"{path} is not there yet; run the grid first (README.md)")
    table = pd.read_parquet(path)
    table = table[table["population"] == "evaluated"]
    k, sampled = _sampled(folder / "leak_at_k.parquet")
    leak, *others = COLUMNS.values()
    rows = [["policy", leak, *([f"leak@{k}"] if k else []), *others, "N", "status"]]
    groups: Any = table.groupby(KEYS, dropna=False, sort=False)
    for group, part in groups:
        medians = part.set_index("metric")["median"]
        first, *cells = [_number(medians.get(metric)) for metric in COLUMNS]
        drawn = [_number(sampled.get(_name(group)))] if k else []
        facts = str(part["n"].max()), _status(part.iloc[0])
        rows.append([_name(group), first, *drawn, *cells, *facts])
    lines = columns(rows, last=True)
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], "", *_instruments(table)])


def _sampled(path: Path) -> tuple[int, dict[str, float]]:
    """(largest k, leak@k of semantic leaks of each policy, by the judge of all); 0 without any."""
    import pandas as pd

    if not path.is_file():
        return 0, {}
    table: Any = pd.read_parquet(path)
    table = table[(table["population"] == "evaluated") & (table["event"] == "semantic")]
    counts = table.groupby("judge_entry", sort=False).size()
    k = int(table["k"].max())
    table = table[(table["k"] == k) & (table["judge_entry"] == counts.idxmax())]
    groups: Any = table.groupby(KEYS, dropna=False, sort=False)
    return k, {_name(group): part["median"].iloc[0] for group, part in groups}


def _instruments(table: Any) -> list[str]:
    """Who labelled, what is missing, and how much a lower bound can see."""
    names = {
        name: ", ".join(sorted(table[name].dropna().unique()))
        for name in ("judge", "judge_prompt", "detector")
    }
    who = " ".join(part for part in (names["judge"], names["judge_prompt"]) if part) or "nobody"
    leaks = table[table["metric"] == "semantic_leakage"]
    lines = [
        f"Judge {who}; detector {names['detector'] or 'none'}; "
        f"{int(leaks['failed_verdicts'].sum())} failed verdicts, "
        f"{int(leaks['missing'].sum())} completions without a leak label"
    ]
    if table["judged_by_own_reward"].eq(True).any():
        lines.append(
            "Some policies were trained on rewards of this very judge: judged_by_own_reward"
        )
    whole, part = (leaks[f"gold_recall_{form}"].dropna() for form in ("whole", "part"))
    if len(whole):
        lines.append(
            f"The leak column is a lower bound: its judge sees {whole.mean():.2f} of the targets' "
            f"gold answers said whole, {part.mean():.2f} if only the longest word is said "
            "(docs/rules-auditor.md)"
        )
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
