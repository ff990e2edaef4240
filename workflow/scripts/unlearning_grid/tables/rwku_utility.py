"""Stage: RWKU's utility scores, absolute and against the base model."""

from collections.abc import Iterator, Mapping
from typing import Any

from unlearning_grid.runtime.job import Job
from unlearning_grid.rwku.conventions import CORRECTED, RWKU
from unlearning_grid.tables.files import write_tables
from unlearning_grid.tables.results import Results, open_results
from unlearning_grid.tables.rwku_scores import HIGHER, Metric, Value, scored_tables

NAME = "rwku_utility"
NOT_IN_PAPER = (CORRECTED, RWKU)
METRICS = (
    Metric("general", "general", "accuracy", HIGHER),
    Metric("reason", "reason", "exact_match", HIGHER),
    Metric("truthfulness_mc1", "truthfulness", "mc1", HIGHER),
    Metric("truthfulness_mc2", "truthfulness", "mc2", HIGHER, conventions=NOT_IN_PAPER),
    Metric("factuality_f1", "factuality", "f1", HIGHER),
    Metric("factuality_exact_match", "factuality", "exact_match", HIGHER, conventions=NOT_IN_PAPER),
    Metric("fluency", "fluency", "entropy", HIGHER),
)


def build(job: Job) -> dict[str, Any]:
    """Write "table" and "csv" over targets, "targets" and "targets_csv" per evaluation."""
    return write_tables(job, NAME, rwku_utility_tables(open_results(job.inputs["plan"])))


def rwku_utility_tables(results: Results) -> dict[str, Any]:
    """Tables by name: rwku_utility and rwku_utility_targets."""
    files = tuple(dict.fromkeys(metric.file for metric in METRICS))
    return scored_tables(results, NAME, files, utility_scores)


def utility_scores(frames: Mapping[str, Any]) -> Iterator[Value]:
    """Values of one evaluation: means over the target's own rows of each set."""
    for metric in METRICS:
        yield from metric.values(frames[metric.file])
