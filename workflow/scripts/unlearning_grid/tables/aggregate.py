"""From one value per evaluation and metric to medians over targets."""

from collections.abc import Mapping, Sequence
from typing import Any

from unlearning_grid.grid import parse_policy
from unlearning_grid.tables.results import Results
from unlearning_grid.tables.statistics import summarise

KEYS = ("kind", "size", "init", "reward")
ORDER = {"base": 0, "warmup": 1, "grpo": 2}
INSTRUMENTS = ("judge", "judge_prompt", "reward_judge", "detector", "convention")
MEANS = ("gold_recall_whole", "gold_recall_part")
WARNINGS = ("judged_by_own_reward",)
MEDIANS = ("greedy",)
COUNTED = ("missing", "missing_verdicts", "failed_verdicts", "rows", "clean_greedy_leaks_sampled")
STATUSES = ("learned", "no-learning", "failed", "not-run")


def evaluation_facts(results: Results, evaluation: Mapping[str, str]) -> dict[str, Any]:
    """Columns that name an evaluation: kind, size, init, reward, seed, target, policy, status.

    Base models and warm-ups have the status "baseline".
    """
    facts = parse_policy(evaluation["policy"])
    return {
        "kind": facts["kind"],
        "size": facts["size"],
        "init": facts.get("init"),
        "reward": facts.get("reward"),
        "seed": facts.get("seed"),
        "target": evaluation["target"],
        "policy": evaluation["policy"],
        "status": results.status_of.get(evaluation["policy"], "baseline"),
    }


def by_target(rows: Sequence[Mapping[str, Any]], by: Sequence[str] = ("metric",)) -> Any:
    """Data frame of one row per evaluation and value (named by `by`), in a stable order."""
    import pandas as pd

    frame = pd.DataFrame(list(rows))
    frame["seed"] = frame["seed"].astype("Int64")
    return _sorted(frame, ["target", "seed", *by])


def over_targets(frame: Any, results: Results, by: Sequence[str] = ("metric",)) -> Any:
    """Median [Q1, Q3] over targets for every group of policies and value (named by `by`).

    Seeds are averaged within a target first. `population` "learned" holds the learned cells, as the
    study reports them; "evaluated" adds the no-learning ones at their own final adapter. Counts of
    cells by status stand beside both, so that an absent cell is seen.
    """
    import pandas as pd

    counts = _cell_counts(results)
    instruments = [name for name in INSTRUMENTS if name not in by]
    rows = []
    for population, statuses in (
        ("learned", ("learned", "baseline")),
        ("evaluated", ("learned", "no-learning", "baseline")),
    ):
        for group, part in frame.groupby([*KEYS, *by], dropna=False, sort=False):
            kept = part[part["status"].isin(statuses)]
            values = kept.dropna(subset=["value"]).groupby("target")["value"].mean().tolist()
            facts = dict(zip([*KEYS, *by], map(_none, group), strict=True))
            rows.append(
                {
                    **facts,
                    "population": population,
                    "direction": part["direction"].iloc[0],
                    **summarise(values),
                    **{name: _median(kept, name) for name in MEDIANS if name in part},
                    **{name: int(kept[name].sum()) for name in COUNTED if name in part},
                    **{name: _instrument(kept, name) for name in instruments if name in part},
                    **{name: _any(kept, name) for name in WARNINGS if name in part},
                    **{name: _mean(kept, name) for name in MEANS if name in part},
                    **counts.get(tuple(facts[key] for key in KEYS), {}),
                    "note": "fewer than 6 targets: no interval" if len(values) < 6 else None,
                }
            )
    table = pd.DataFrame(rows)
    for status in STATUSES:
        name = _count_name(status)
        if name in table:
            table[name] = table[name].astype("Int64")
    return _sorted(table, ["population", *by])


def _instrument(part: Any, name: str) -> str | None:
    """Who or what measured: one name, or several where a group mixes them."""
    return ", ".join(sorted(part[name].dropna().unique())) or None


def _mean(part: Any, name: str) -> float | None:
    """Mean over the group's evaluations; None where it is known for none."""
    known = part[name].dropna()
    return float(known.mean()) if len(known) else None


def _median(part: Any, name: str) -> float | None:
    """Median over targets of a second value, seeds averaged first; None where all are missing."""
    known = part.dropna(subset=[name]).groupby("target")[name].mean().tolist()
    return summarise(known)["median"]


def _any(part: Any, name: str) -> bool | None:
    """Whether it holds for any of the group; None where it is known for none."""
    known = part[name].dropna()
    return bool(known.any()) if len(known) else None


def _cell_counts(results: Results) -> dict[tuple[Any, ...], dict[str, int]]:
    counts: dict[tuple[Any, ...], dict[str, int]] = {}
    for cell in results.cells:
        group = ("grpo", cell["size"], cell["init"], cell["reward"])
        entry = counts.setdefault(group, {_count_name(status): 0 for status in STATUSES})
        entry[_count_name(cell["status"])] += 1
    return counts


def _count_name(status: str) -> str:
    return "cells_" + status.replace("-", "_")


def _sorted(frame: Any, more: list[str]) -> Any:
    """Rows in the order base, warm-up, GRPO; then size, init, reward and `more`."""
    keyed = frame.assign(_kind=frame["kind"].map(ORDER))
    keys = ["_kind", "size", "init", "reward", *more]
    return keyed.sort_values(keys, na_position="first", kind="stable", ignore_index=True).drop(
        columns="_kind"
    )


def _none(value: Any) -> Any:
    return None if value != value else value
