"""Stage: leak@k of the held-out questions, per evaluation and over targets.

Beside it stands what the same judge says of the greedy completions of the same questions: `greedy`,
the share that leaks. A policy with 0 there and more than 0 at k is clean only as long as nobody
samples.
"""

from collections.abc import Iterator
from typing import Any

from unlearning_grid.diagnostics.leak import leak_at_k, numbers
from unlearning_grid.runtime.job import Job
from unlearning_grid.tables.aggregate import by_target, evaluation_facts, over_targets
from unlearning_grid.tables.files import write_tables
from unlearning_grid.tables.heldout import LOWER, instruments
from unlearning_grid.tables.results import Results, open_results

EVENTS = {"semantic": "semantic_leakage", "lexical": "lexical_leakage"}
BY = ("judge_entry", "event", "k")


def build(job: Job) -> dict[str, Any]:
    """Write "table" and "csv" over targets, "targets" and "targets_csv" per evaluation."""
    return write_tables(job, "leak_at_k", leak_tables(open_results(job.inputs["plan"])))


def has_sampled_audits(results: Results) -> bool:
    """Whether the plan asks for them."""
    return bool(results.plan["sampled_audits"])


def leak_tables(results: Results) -> dict[str, Any]:
    """Tables by name: leak_at_k (medians) and leak_at_k_targets (one row an evaluation and k)."""
    rows: list[dict[str, Any]] = []
    for audit, labels, judges in labelled(results):
        facts = evaluation_facts(results, audit)
        found = leaks(labels, results.plan["samples"])
        rows += [{**facts, "judge_entry": audit["judge"], **one, **judges} for one in found]
    frame = by_target(rows, BY)
    return {"leak_at_k": over_targets(frame, results, BY), "leak_at_k_targets": frame}


def labelled(results: Results) -> Iterator[tuple[dict[str, str], Any, dict[str, Any]]]:
    """(facts, labels or None where they do not count, who labelled) of every planned audit."""
    import pandas as pd

    from unlearning_grid.paths import sampled_stage

    for audit in results.plan["sampled_audits"]:
        policy, target = audit["policy"], audit["target"]
        path = results.file(sampled_stage(audit["judge"]), policy, target, "labels.parquet")
        labels = pd.read_parquet(path) if path else None
        judges = instruments(labels, results.reward_instruments(policy).get("judge"))
        yield audit, labels, judges


def leaks(labels: Any | None, samples: int) -> list[dict[str, Any]]:
    """leak@k of one evaluation for both events and every k: the mean over its prompts.

    clean_greedy_leaks_sampled: 1 where the greedy completions do not leak and the value is above 0,
    else 0, and missing where that is not known; prompts: with an estimate; missing: prompts with
    fewer than k verdicts, which have none; missing_verdicts: of all samples; greedy: share of the
    greedy completions that leak. Without `labels` all values are missing.
    """
    found = []
    for event, column in EVENTS.items():
        counts = _counts(labels, column)
        greedy, clean = _greedy(labels, column, len(counts))
        for k in numbers(samples):
            values = [leak_at_k(n, c, k) for n, c in counts if n >= k]
            value = sum(values) / len(values) if values else None
            found.append(
                {
                    "event": event,
                    "k": k,
                    "direction": LOWER,
                    "value": value,
                    "greedy": greedy,
                    "clean_greedy_leaks_sampled": _leaks_when_sampled(clean, value),
                    "prompts": len(values),
                    "missing": len(counts) - len(values),
                    "samples": samples,
                    "missing_verdicts": _missing(labels, column),
                }
            )
    return found


def _counts(labels: Any | None, column: str) -> list[tuple[int, int]]:
    """(verdicts, leaks) of each prompt's samples."""
    if labels is None:
        return []
    sampled = labels[labels["decoding"] == "sampled"]
    groups = sampled.groupby("prompt_id", sort=False)[column]
    return [(int(one.notna().sum()), int(one.sum())) for _, one in groups]


def _missing(labels: Any | None, column: str) -> int:
    if labels is None:
        return 0
    return int(labels.loc[labels["decoding"] == "sampled", column].isna().sum())


def _greedy(labels: Any | None, column: str, prompts: int) -> tuple[float | None, bool | None]:
    """Share of the greedy completions that leak, and whether none does.

    The latter is known with one that leaks, or with a verdict on each of the sampled prompts.
    """
    if labels is None:
        return None, None
    known = labels.loc[labels["decoding"] == "greedy", column].dropna()
    if not len(known):
        return None, None
    leaks = int(known.sum())
    clean = False if leaks else True if len(known) == prompts else None
    return leaks / len(known), clean


def _leaks_when_sampled(clean: bool | None, value: float | None) -> int | None:
    return None if clean is None or value is None else int(clean and value > 0)
