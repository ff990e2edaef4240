"""Stage: RWKU's forget, neighbor and membership scores, absolute and against the base model."""

from collections.abc import Iterator, Mapping
from typing import Any

from unlearning_grid.runtime.job import Job
from unlearning_grid.rwku.conventions import CORRECTED, PAPER, RWKU
from unlearning_grid.rwku.membership import separation
from unlearning_grid.tables.files import write_tables
from unlearning_grid.tables.results import Results, open_results
from unlearning_grid.tables.rwku_scores import (
    HIGHER,
    LOWER,
    Metric,
    Value,
    mean_of,
    scored_tables,
)

NAME = "rwku_core"
LEVELS = {"forget": (1, 2, 3), "neighbor": (1, 2)}
DIRECTION = {"forget": LOWER, "neighbor": HIGHER}
MEMBERSHIP = {"zlib": "zlib", "min_k": "min_k_20", "min_k_plus_plus": "min_k_plus_plus_20"}
"""Metric name -> score of the rows. Min-K and Min-K++ at RWKU's 20 %; rows hold ten ratios."""


def build(job: Job) -> dict[str, Any]:
    """Write "table" and "csv" over targets, "targets" and "targets_csv" per evaluation."""
    return write_tables(job, NAME, rwku_core_tables(open_results(job.inputs["plan"])))


def rwku_core_tables(results: Results) -> dict[str, Any]:
    """Tables by name: rwku_core and rwku_core_targets."""
    return scored_tables(results, NAME, ("forget", "neighbor", "mia"), core_scores)


def core_scores(frames: Mapping[str, Any]) -> Iterator[Value]:
    """Values of one evaluation.

    forget, neighbor: unweighted mean of the level means (RWKU reports levels only); _rows: mean
    over all rows. mia_*: mean loss of the texts (paper: their sum; rwku: log-likelihood).
    """
    for name, levels in LEVELS.items():
        parts = [f"{name}_level{level}" for level in levels]
        found: list[Value] = []
        for part in parts:
            metric = Metric(part, name, "rouge_l_recall", DIRECTION[name], configs=(part,))
            found += metric.values(frames[name])
        yield from mean_of(found, parts, name, (CORRECTED, PAPER))
        yield from found
        rows = Metric(f"{name}_rows", name, "rouge_l_recall", DIRECTION[name], rounded=False)
        yield from rows.values(frames[name])
    for name, more_loss in (("mia_forget", HIGHER), ("mia_retain", LOWER)):
        loss = Metric(name, "mia", "loss", more_loss, (name,), summed=(PAPER,), turned=(RWKU,))
        yield from loss.values(frames["mia"])
        likelier = LOWER if more_loss == HIGHER else HIGHER
        for kind, score in MEMBERSHIP.items():
            metric = Metric(
                f"{name}_{kind}", "mia", score, likelier, (name,), conventions=(CORRECTED, RWKU)
            )
            yield from metric.values(frames["mia"])
    yield _separation(frames["mia"])


def _separation(rows: Any | None) -> Value:
    """forget_retain_separation: probability that a forget text has more loss than a retain text.

    0.5: the losses tell the two sets apart in no way; it rises as the target's texts become less
    likely than the others. Both were probably seen in pretraining: no claim about membership.
    """
    losses: dict[str, list[float]] = {"mia_forget": [], "mia_retain": []}
    counted = 0
    if rows is not None:
        own = rows[(rows["metric"] == "loss") & (rows["convention"] == CORRECTED)]
        counted = len(own)
        for config, part in own.groupby("config"):
            losses[config] = part["score"].dropna().astype(float).tolist()
    return {
        "metric": "forget_retain_separation",
        "convention": CORRECTED,
        "direction": HIGHER,
        "value": separation(losses["mia_forget"], losses["mia_retain"]),
        "rows": counted,
        "missing": counted - sum(map(len, losses.values())),
    }
