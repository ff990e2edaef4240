"""Edits of environments, profiles and command lines."""

from invalidation.changes import Edit, append, both, nothing, replace
from invalidation.changes import Settings as Set
from invalidation.expected import EVERYTHING, NOTHING, TABLES

# Written out here, not read from the library: what the table says is what a user reads.
TRACKING = ("psutil", "pyyaml", "jsonschema", "openai", "tenacity", "tensorboard")

ENVIRONMENTS = [
    Edit(
        "a pin of `envs/train.yaml`",
        replace("envs/train.yaml", "transformers==5.17.0", "transformers==5.17.1"),
        EVERYTHING,
    ),
    Edit(
        "a pin of `envs/analysis.yaml`",
        replace("envs/analysis.yaml", "rapidfuzz==3.14.6", "rapidfuzz==3.14.7"),
        {"evaluate_rwku": 20, **TABLES},
    ),
    Edit(
        "pins that change no result: " + ", ".join(TRACKING),
        both(*(replace("envs/train.yaml", f"{name}==", f"{name}==1.") for name in TRACKING)),
        NOTHING,
    ),
    Edit(
        "pins of `envs/runner.yaml`, `envs/dev.yaml`, and without vLLM `envs/vllm.yaml`",
        both(*(replace(f"envs/{name}.yaml", "==", "==1.") for name in ("runner", "dev", "vllm"))),
        NOTHING,
    ),
    Edit("a comment in an environment file", append("envs/train.yaml", "# A remark.\n"), NOTHING),
    Edit(
        "resources and threads in a profile",
        Set(
            {"set-resources": {"train_grpo": {"mem_mb": 9}}, "set-threads": {"train_grpo": 3}},
            "profiles/default/config.yaml",
        ),
        NOTHING,
    ),
    Edit(
        "resources, threads and cores on the command line",
        nothing,
        NOTHING,
        words=(
            "--set-resources",
            "train_grpo:runtime=7",
            "--set-threads",
            "train_grpo=3",
            "--cores",
            "5",
        ),
    ),
    Edit("another profile", nothing, NOTHING, words=("--profile", "profiles/demo")),
]
