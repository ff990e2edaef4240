"""Settings that say how a result is computed and not what it is."""

from typing import Any

from invalidation.changes import Edit
from invalidation.changes import Settings as Set
from invalidation.expected import NOTHING

VALUES: dict[str, dict[str, Any]] = {
    "warmup": {
        "save_steps": 7,
        "eval_batch_size": 8,
        "gradient_checkpointing": True,
        "monitor/max_missing_share": 0.2,
    },
    "grpo": {
        "save_steps": 4,
        "micro_batch_size": 8,
        "gradient_checkpointing": True,
        "max_missing_share": 0.2,
        "vllm_memory_share": 0.4,
    },
    "generate": {"batch_size": 8, "python": "/opt/vllm/bin/python", "vllm_memory_share": 0.5},
    "likelihood": {"batch_size": 8},
    "broad_answers": {"max_missing_share": 0.4},
    "audit": {"max_missing_share": 0.2},
    "judges": {"reward/key_variable": "ANOTHER_KEY", "audit/key_variable": "ANOTHER_KEY"},
}

OPERATIONAL = [
    Edit(
        ", ".join(f"`{block}.{key.replace('/', '.')}`" for key in values),
        Set({f"{block}/{key}": value for key, value in values.items()}),
        NOTHING,
    )
    for block, values in VALUES.items()
]
