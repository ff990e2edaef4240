"""Edits of the configuration up to the trained policies."""

from invalidation.changes import Edit
from invalidation.changes import Settings as Set
from invalidation.expected import (
    COMPLETIONS,
    DETECTOR_AGAIN,
    EVERYTHING,
    NOTHING,
    SAMPLES,
    TABLES,
    below,
    without,
)

TRAINED_AGAIN = below(cells=16, warmups=2)

TRAINING = [
    Edit(
        "a base model's precision",
        Set({"models/tiny/dtype": "bfloat16"}),
        without(
            EVERYTHING,
            "build_demo_world",
            "load_rows",
            "write_knowledge",
            "split_target",
            "write_broad_answers",
        ),
    ),
    Edit("a model that no cell uses", Set({"models/other": {"build": "world"}}), NOTHING),
    Edit(
        "revision of rows from the hub, where the world's are used",
        Set({"data/revision": "0" * 40}),
        NOTHING,
    ),
    Edit("pretraining of the demo's model", Set({"world/steps": 401}), EVERYTHING),
    Edit(
        "seed of the split",
        Set({"split/seed": 43}),
        {"split_target": 2, "write_broad_answers": 2} | TRAINED_AGAIN | COMPLETIONS | SAMPLES,
    ),
    Edit(
        "seed of the broad answers",
        Set({"broad_answers/seed": 43}),
        {"write_broad_answers": 2} | below(cells=8, warmups=2),
    ),
    Edit(
        "a setting of another provider of broad answers",
        Set({"broad_answers/hide_names": "this person"}),
        NOTHING,
    ),
    Edit("training of the refusal detector", Set({"detector/train/steps": 151}), DETECTOR_AGAIN),
    Edit(
        "two of the detector's targets swapped",
        Set({"detector/train/targets": ["karl-marx", "bruce-lee"]}),
        DETECTOR_AGAIN,
    ),
    Edit(
        "other detectors to compare it with",
        Set({"detector/compare": []}),
        {"evaluate_refusal_detectors": 1, **TABLES},
    ),
    Edit("rank of the adapters", Set({"lora/rank": 17}), TRAINED_AGAIN),
    Edit(
        "two values within a list swapped",
        Set(
            {
                "lora/target_modules": [
                    "k_proj",
                    "q_proj",
                    "v_proj",
                    "o_proj",
                    "gate_proj",
                    "up_proj",
                    "down_proj",
                ]
            }
        ),
        TRAINED_AGAIN,
    ),
    Edit("epochs of the warm-up", Set({"warmup/epochs": 21}), below(cells=8, warmups=2)),
    Edit("the warm-up's monitor", Set({"warmup/monitor/samples": 9}), below(cells=8, warmups=2)),
    Edit(
        "warm-ups without monitor",
        Set({"warmup/monitor/enabled": False}),
        below(cells=8, warmups=2),
    ),
    Edit(
        "the objective of the warm-up",
        Set({"warmup/objective": "refusal"}),
        below(cells=8, warmups=2),
    ),
    Edit("steps of GRPO", Set({"grpo/max_steps": 62}), below(cells=16)),
    Edit(
        "two settings of GRPO that take each other's value",
        Set({"grpo/beta": 0.2, "grpo/epsilon": 0.04}),
        below(cells=16),
    ),
    Edit("the rule for no learning", Set({"grpo/no_learning/threshold": 0.06}), below(cells=16)),
    Edit(
        "a setting of R0",
        Set({"rewards/r0-lex/convention": "folded"}),
        below(cells=4),
    ),
    Edit(
        "the judge of R2, which the warm-ups' monitor asks, too",
        Set({"rewards/r2-rubric/judge": "lower-bound"}),
        below(cells=10, warmups=2),
    ),
    Edit("a setting of a reward that no cell has", Set({"rewards/r3-fuzzy/scale": 31}), NOTHING),
    Edit(
        "how terms are weighed, where no reward weighs them",
        Set({"term_weights/damping": 0.8}),
        NOTHING,
    ),
]
