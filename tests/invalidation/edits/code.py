"""Edits of the library: one module of each package, and edits that change no behaviour.

What every module is part of stands in module_table.py.
"""

from invalidation.changes import LIBRARY, Edit, append, both, code, replace
from invalidation.expected import (
    COMPLETIONS,
    DETECTOR_AGAIN,
    EVERYTHING,
    LABELS,
    NOTHING,
    SAMPLES,
    TABLES,
    below,
    without,
)

OUTSIDE = (
    "checks.words",
    "config",
    "errors",
    "generate.registry",
    "grid",
    "judge.registry",
    "ops.show",
    "paths",
    "remote.cache",
    "remote.transport",
    "runtime.provenance",
    "spec.canonical",
)
"""Modules of the packages that lie outside every code digest."""

CODE = [
    Edit(
        "a comment",
        append(f"{LIBRARY}/rewards/lexical.py", "\n# A remark.\n"),
        NOTHING,
    ),
    Edit(
        "a docstring",
        replace(f"{LIBRARY}/train/grpo.py", '"""Stage: unlearn', '"""Stage that unlearns'),
        NOTHING,
    ),
    Edit(
        "formatting",
        replace(f"{LIBRARY}/train/grpo.py", "import ", "import  "),
        NOTHING,
    ),
    Edit(
        "an entry script",
        append("workflow/scripts/train_grpo.py", "\nEXTRA = 1\n"),
        NOTHING,
    ),
    Edit(
        "comments and docstrings of a rule file",
        replace("workflow/rules/grpo.smk", '"""Unlearn', '# A remark.\n    """To unlearn'),
        NOTHING,
    ),
    Edit(
        "a default in the schema of configurations",
        replace("workflow/schemas/config.schema.yaml", "default: 0.04,", "default: 0.05,"),
        below(cells=16),
    ),
    Edit(
        "a new reward registered",
        replace(
            f"{LIBRARY}/rewards/registry.py", '    "r0-lex":', '    "new": "a:b",\n    "r0-lex":'
        ),
        NOTHING,
    ),
    Edit(
        "what lies outside every digest: " + ", ".join(f"`{name}`" for name in OUTSIDE),
        both(*(code(name) for name in OUTSIDE)),
        NOTHING,
    ),
    Edit("`data.world.facts`", code("data.world.facts"), EVERYTHING),
    Edit(
        "`data.split`",
        code("data.split"),
        {"split_target": 2, "write_broad_answers": 2}
        | below(cells=16, warmups=2)
        | COMPLETIONS
        | SAMPLES,
    ),
    Edit(
        "`data.broad`",
        code("data.broad"),
        {"write_broad_answers": 2} | below(cells=8, warmups=2),
    ),
    Edit("`train.grpo`", code("train.grpo"), below(cells=16)),
    Edit("`train.lora`", code("train.lora"), below(cells=16, warmups=2)),
    Edit("`train.warmup`", code("train.warmup"), below(cells=8, warmups=2)),
    Edit("`rewards.refusal`, which is R4", code("rewards.refusal"), below(cells=4)),
    Edit(
        "`rewards.lexical`, which is R0 and which R1 builds on",
        code("rewards.lexical"),
        below(cells=8),
    ),
    Edit(
        "`rewards.rubric`, which is R2 and which the warm-ups' monitor asks",
        code("rewards.rubric"),
        below(cells=10, warmups=2),
    ),
    Edit("`rewards.fuzzy`, which no cell has", code("rewards.fuzzy"), NOTHING),
    Edit(
        "`judge.rules`, which is every judge of the demo",
        code("judge.rules"),
        below(cells=10, warmups=2) | LABELS,
    ),
    Edit("`judge.openai`, which no judge of the demo is", code("judge.openai"), NOTHING),
    Edit(
        "`models.detector_training`",
        code("models.detector_training"),
        DETECTOR_AGAIN,
    ),
    Edit("`generate.greedy`", code("generate.greedy"), COMPLETIONS | TABLES),
    Edit("`generate.sampled`", code("generate.sampled"), SAMPLES | TABLES),
    Edit("`generate.rows`", code("generate.rows"), COMPLETIONS | SAMPLES | TABLES),
    Edit("`generate.by_vllm`, which is not the demo's engine", code("generate.by_vllm"), NOTHING),
    Edit(
        "`diagnostics.leak`",
        code("diagnostics.leak"),
        {"build_leak_at_k_table": 1, "build_sampled_audit_table": 1, "plot_leak_at_k": 1, "all": 1},
    ),
    Edit(
        "`audit.heldout`",
        code("audit.heldout"),
        {"audit_completions": 20, "audit_again": 20, **TABLES},
    ),
    Edit("`audit.label`", code("audit.label"), LABELS | TABLES),
    Edit("`audit.samples`", code("audit.samples"), {"audit_samples": 20, **TABLES}),
    Edit("`rwku.score`", code("rwku.score"), {"evaluate_rwku": 20, **TABLES}),
    Edit(
        "`rwku.likelihood`",
        code("rwku.likelihood"),
        {"score_likelihoods": 20, "evaluate_rwku": 20, **TABLES},
    ),
    Edit(
        "`tables.training`, which makes one table",
        code("tables.training"),
        {"build_training_table": 1, "all": 1},
    ),
    Edit(
        "`tables.results`, by which every table reads",
        code("tables.results"),
        without(TABLES, "write_plan"),
    ),
]
