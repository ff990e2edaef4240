"""Stage: RWKU's forget scores by adversarial type, absolute and against the base model."""

from collections.abc import Iterator, Mapping
from typing import Any

from unlearning_grid.runtime.job import Job
from unlearning_grid.tables.files import write_tables
from unlearning_grid.tables.results import Results, open_results
from unlearning_grid.tables.rwku_scores import LOWER, Metric, Value, scored_tables

NAME = "rwku_types"
CONFIG = "forget_level3"
TYPES = (
    "prefix injection",
    "affirmative suffix",
    "role play",
    "multiple choice",
    "reverse query",
    "synonym manipulation",
    "context hint",
    "incontext learning",
    "cross lingual (Spanish)",
    "cross lingual (French)",
    "cross lingual (German)",
)


def build(job: Job) -> dict[str, Any]:
    """Write "table" and "csv" over targets, "targets" and "targets_csv" per evaluation."""
    return write_tables(job, NAME, rwku_types_tables(open_results(job.inputs["plan"])))


def rwku_types_tables(results: Results) -> dict[str, Any]:
    """Tables by name: rwku_types and rwku_types_targets."""
    by = ("type", "metric", "convention")
    return scored_tables(results, NAME, ("forget",), type_scores, by)


def type_scores(frames: Mapping[str, Any]) -> Iterator[Value]:
    """Values of one evaluation. A target without probes of a type has no value for it, 0 rows.

    Types that RWKU does not have (an own data set) follow, by name.
    """
    rows = frames["forget"]
    metric = Metric(
        "rouge_l_recall", "forget", "rouge_l_recall", LOWER, configs=(CONFIG,), rounded=False
    )
    known = [] if rows is None else rows[rows["config"] == CONFIG]["type"].unique().tolist()
    for kind in [*TYPES, *sorted(set(known) - set(TYPES))]:
        part = None if rows is None else rows[rows["type"] == kind]
        part = None if part is None or part.empty else part
        yield from metric.values(part, type=kind)
