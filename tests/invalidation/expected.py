"""Sets of planned jobs under names, and in words.

The demo grid is 2 targets x 1 size x 2 inits x 4 rewards x 1 seed: 16 cells, 2 warm-ups and, with
each target's base model, 20 evaluations.
"""

from support import PLANNED

Counts = dict[str, int]
"""Rule -> number of jobs."""

NOTHING: Counts = {}
TABLES: Counts = PLANNED
"""The plan, every table and figure, and `all`."""

EVALUATION = (
    "generate_completions",
    "sample_completions",
    "score_likelihoods",
    "audit_completions",
    "audit_again",
    "audit_samples",
    "evaluate_rwku",
)
SAMPLES = {"sample_completions": 20, "audit_samples": 20}
"""Samples of every evaluation, and what reads them."""
AUDITS = {"audit_completions": 20, "audit_again": 20, "audit_rollouts": 16}
"""Labels for which the refusal detector is asked."""
LABELS = AUDITS | {"audit_samples": 20}
COMPLETIONS = {
    "generate_completions": 20,
    "audit_completions": 20,
    "audit_again": 20,
    "audit_samples": 20,
    "evaluate_rwku": 20,
}
"""Completions of every evaluation, and what reads them."""


def below(cells: int, warmups: int = 0) -> dict[str, int]:
    """Everything that follows training so many cells and warm-ups again."""
    training = {"train_warmup": warmups} if warmups else {}
    training |= {"train_grpo": cells, "audit_rollouts": cells}
    return training | dict.fromkeys(EVALUATION, cells + warmups) | TABLES


# R1, R2 and R4 ask the detector, and so does the monitor of the warm-ups; every audit, too.
DETECTOR_AGAIN = (
    {"train_refusal_detector": 1, "evaluate_refusal_detectors": 1}
    | below(cells=14, warmups=2)
    | AUDITS
)

EVERYTHING: Counts = {
    "build_demo_world": 1,
    "load_rows": 6,
    "write_knowledge": 2,
    "split_target": 2,
    "train_refusal_detector": 1,
    "evaluate_refusal_detectors": 1,
    "write_broad_answers": 2,
    "render_rwku": 2,
    "train_warmup": 2,
    "train_grpo": 16,
    "audit_rollouts": 16,
    **dict.fromkeys(EVALUATION, 20),
    **TABLES,
}


def without(counts: Counts, *rules: str) -> dict[str, int]:
    """The same jobs less those of some rules, which must be among them."""
    assert set(rules) <= set(counts)
    return {rule: number for rule, number in counts.items() if rule not in rules}


def in_words(counts: Counts) -> str:
    """Planned jobs as a reader of docs/reruns.md wants them."""
    if not counts:
        return "nothing"
    if counts == EVERYTHING:
        return "everything"
    left = {rule: number for rule, number in counts.items() if rule not in TABLES}
    parts = []
    cells, warmups = left.get("train_grpo", 0), left.get("train_warmup", 0)
    if cells:
        trained = [_number(warmups, "warm-up")] if warmups else []
        trained.append(_number(cells, "cell"))
        parts.append(" and ".join(trained) + " with all that follows")
        follows = below(cells, warmups)
        left = {rule: number for rule, number in left.items() if follows.get(rule) != number}
    evaluations = left.get("generate_completions", 0)
    if all(left.get(rule) == evaluations for rule in EVALUATION):
        left = without(left, *EVALUATION)
        parts.append(_number(evaluations, "evaluation"))
    parts += [f"`{rule}`" + (f" {n}" if n > 1 else "") for rule, n in left.items()]
    return ", ".join(parts + _tables(counts, bool(cells)))


def _tables(counts: Counts, trained: bool) -> list[str]:
    """Which tables are built; all of them follow a training."""
    absent = [rule for rule in TABLES if rule not in counts]
    if not absent:
        return [] if trained else ["the tables"]
    if len(absent) == 1:
        name = {"write_plan": "the plan"}.get(absent[0], f"`{absent[0]}`")
        return [f"the tables without {name}"]
    return [f"`{rule}`" for rule in TABLES if rule in counts and rule != "all"]


def _number(count: int, word: str) -> str:
    return f"{count} {word}{'s' if count > 1 else ''}"
