"""RWKU scores of every evaluation, from its rows: one value per metric and convention.

Nothing is read but rows (results/rwku/…/{set}.parquet), so a reader can recompute every value.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unlearning_grid.rwku.conventions import CONVENTIONS, CRASH, PAPER, REPEATED
from unlearning_grid.tables.aggregate import by_target, evaluation_facts, over_targets
from unlearning_grid.tables.results import Results

COLUMNS = ["config", "type", "metric", "convention", "score", "state"]
DECIMALS = 3
"""The study's summaries hold so many decimals, and its deltas are differences of those."""

LOWER, HIGHER = "lower", "higher"
Value = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    """A mean over rows.

    Attributes:
        name: of the metric in the tables.
        file: RWKU set whose rows hold it.
        score: `metric` of these rows.
        configs: RWKU configs that count; all where empty.
        direction: which way is better for useful unlearning.
        summed: conventions that add rows up.
        turned: conventions with the opposite sign, and so the opposite direction.
        conventions: those that have the metric.
        rounded: whether `paper` rounds it (the study's summary table does, its details do not).
    """

    name: str
    file: str
    score: str
    direction: str
    configs: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()
    turned: tuple[str, ...] = ()
    conventions: tuple[str, ...] = CONVENTIONS
    rounded: bool = True

    def values(self, rows: Any | None, **facts: Any) -> Iterator[Value]:
        """One value per convention.

        `rows` counted and `missing` scores among them stand beside it. The value is missing where
        no row has a score, and where the convention's own scorer raises on one.
        """
        found = None if rows is None else rows[rows["metric"] == self.score]
        for convention in self.conventions:
            counted, scores, crashed = 0, [], False
            if found is not None:
                own = found[found["convention"] == convention]
                own = own[own["config"].isin(self.configs)] if self.configs else own
                own = own[own["state"] != REPEATED]
                counted, scores = len(own), own["score"].dropna().astype(float).tolist()
                crashed = bool((own["state"] == CRASH).any())
            turn = convention in self.turned
            yield {
                **facts,
                "metric": self.name,
                "convention": convention,
                "direction": OPPOSITE[self.direction] if turn else self.direction,
                "value": None if crashed else self._reduce(scores, convention),
                "rows": counted,
                "missing": counted - len(scores),
            }

    def _reduce(self, scores: Sequence[float], convention: str) -> float | None:
        if not scores:
            return None
        value = sum(scores) if convention in self.summed else sum(scores) / len(scores)
        return round(value, DECIMALS) if convention == PAPER and self.rounded else value


OPPOSITE = {LOWER: HIGHER, HIGHER: LOWER}


def scored_tables(
    results: Results,
    name: str,
    files: Sequence[str],
    measure: Callable[[Mapping[str, Any]], Iterator[Value]],
    by: Sequence[str] = ("metric", "convention"),
) -> dict[str, Any]:
    """Tables by name: `name` (medians over targets) and `name`_targets (one row an evaluation).

    Args:
        measure: values of one evaluation from the frames of its `files` (None where it has none).
        by: what names a value beside the policy.
    """
    rows: list[Value] = []
    for evaluation in results.plan["evaluations"]:
        facts = evaluation_facts(results, evaluation)
        rows += [{**facts, **value} for value in measure(_frames(results, evaluation, files))]
    frame = by_target(rows + _deltas(rows, by), by)
    return {name: over_targets(frame, results, by), f"{name}_targets": frame}


def _frames(
    results: Results, evaluation: Mapping[str, str], files: Sequence[str]
) -> dict[str, Any]:
    import pandas as pd

    found = {}
    for name in files:
        policy, target = evaluation["policy"], evaluation["target"]
        path = results.file("rwku", policy, target, f"{name}.parquet")
        found[name] = pd.read_parquet(path, columns=COLUMNS) if path else None
    return found


def _deltas(rows: Sequence[Value], by: Sequence[str]) -> list[Value]:
    """Trained minus base model of the same size and target; metric names end in _delta.

    In the convention `paper` both sides are rounded before.
    """

    def key(row: Value) -> tuple[Any, ...]:
        return row["size"], row["target"], *(row[name] for name in by)

    base = {key(row): row["value"] for row in rows if row["kind"] == "base"}
    found = []
    for row in rows:
        if row["kind"] == "base":
            continue
        before, after = base.get(key(row)), row["value"]
        value = None if before is None or after is None else after - before
        found.append({**row, "metric": f"{row['metric']}_delta", "value": value})
    return found


def mean_of(
    values: Sequence[Value], parts: Sequence[str], name: str, conventions: Sequence[str]
) -> Iterator[Value]:
    """Unweighted mean of some metrics, per convention; missing where one of them is."""
    for convention in conventions:
        own = [v for v in values if v["metric"] in parts and v["convention"] == convention]
        if not own:
            continue
        known = [v["value"] for v in own if v["value"] is not None]
        yield {
            **own[0],
            "metric": name,
            "value": sum(known) / len(known) if len(known) == len(parts) else None,
            "rows": sum(v["rows"] for v in own),
            "missing": sum(v["missing"] for v in own),
        }
