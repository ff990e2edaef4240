"""Settings that decide how a result is computed, or when a job gives up, and not what it holds.

They stand in the configuration, and in no spec: lowering the micro-batch after an out-of-memory
error, or renaming the variable that holds a key, must not train finished cells again. What they do
change is rounding: the order in which numbers are added up.
"""

from collections.abc import Mapping
from typing import Any

# rule -> settings by their place in the stage's settings
OPERATIONAL: dict[str, tuple[str, ...]] = {
    "write_broad_answers": ("max_missing_share", "judge.key_variable"),
    "train_warmup": (
        "eval_batch_size",
        "gradient_checkpointing",
        "save_steps",
        "monitor.max_missing_share",
        "monitor.reward.judge.key_variable",
    ),
    "train_grpo": (
        "micro_batch_size",
        "gradient_checkpointing",
        "save_steps",
        "max_missing_share",
        "vllm_memory_share",
        "reward.judge.key_variable",
    ),
    "generate_completions": ("batch_size", "python", "vllm_memory_share"),
    "generate_base_rows": ("batch_size", "python", "vllm_memory_share"),
    "sample_completions": ("batch_size", "python", "vllm_memory_share"),
    "score_likelihoods": ("batch_size",),
    "audit_completions": ("max_missing_share", "judge.key_variable"),
    "audit_again": ("max_missing_share", "judge.key_variable"),
    "audit_samples": ("max_missing_share", "judge.key_variable"),
    "audit_rollouts": ("max_missing_share", "judge.key_variable"),
    "write_plan": ("config",),  # the plan's digest says all that a table depends on
}


def divide(stage: str, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings of the spec, operational settings); `settings` stays as it is."""
    facts: dict[str, Any] = dict(settings)
    operations: dict[str, Any] = {}
    for place in OPERATIONAL.get(stage, ()):
        *blocks, name = place.split(".")
        inside: Any = facts
        for block in blocks:
            if not isinstance(inside.get(block), Mapping):
                break
            inside[block] = inside = dict(inside[block])
        else:
            if name in inside:
                target = operations
                for block in blocks:
                    target = target.setdefault(block, {})
                target[name] = inside.pop(name)
    return facts, operations


def combine(facts: Mapping[str, Any], operations: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that `divide` was given."""
    combined = dict(facts)
    for name, value in operations.items():
        nested = isinstance(value, Mapping) and isinstance(combined.get(name), Mapping)
        combined[name] = combine(combined[name], value) if nested else value
    return combined
