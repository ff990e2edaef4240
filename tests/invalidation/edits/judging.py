"""Edits of the configuration below the trained policies."""

from invalidation.changes import Edit
from invalidation.changes import Settings as Set
from invalidation.expected import COMPLETIONS, LABELS, NOTHING, SAMPLES, TABLES, below, without

JUDGING = [
    Edit(
        "the training judge",
        Set({"judges/reward/error_rate": 0.03}),
        below(cells=10, warmups=2),
    ),
    Edit(
        "the audit's judge",
        Set({"judges/audit/seed": 1}),
        {"audit_completions": 20, "audit_rollouts": 16, "audit_samples": 20, **TABLES},
    ),
    Edit("the second judge", Set({"judges/lower-bound/seed": 1}), {"audit_again": 20, **TABLES}),
    Edit("a judge that nobody asks", Set({"judges/other": {"provider": "rules"}}), NOTHING),
    Edit(
        "another judge for the audit",
        Set({"judges/other": {"provider": "rules"}, "audit/judge": "other"}),
        {"audit_completions": 20, "audit_rollouts": 16, "audit_samples": 20, **TABLES},
    ),
    Edit("the label set", Set({"audit/labels": "five"}), LABELS | TABLES),
    Edit(
        "which completions are audited",
        Set({"audit/decoding": "shipped"}),
        {"audit_completions": 20, "audit_again": 20, **TABLES},
    ),
    Edit(
        "how many last rollouts are labelled",
        Set({"terminal_audit/rollouts": 4}),
        {"audit_rollouts": 16, **TABLES},
    ),
    Edit(
        "no audit of the last rollouts any more",
        Set({"terminal_audit/enabled": False}),
        without(TABLES, "build_terminal_audit_table"),
    ),
    Edit(
        "one more opinion",
        Set({"judges/other": {"provider": "rules"}, "agreement/judges": ["lower-bound", "other"]}),
        {"audit_again": 20, **TABLES},
    ),
    Edit("no further opinion any more", Set({"agreement/judges": []}), TABLES),
    Edit(
        "prompts of a further opinion",
        Set({"agreement/max_prompts": 7}),
        {"audit_again": 20, **TABLES},
    ),
    Edit(
        "length of the held-out answers",
        Set({"generate/sets/heldout/max_new_tokens": 25}),
        COMPLETIONS | SAMPLES | TABLES,
    ),
    Edit(
        "length of one utility set",
        Set({"generate/sets/rwku-fluency/max_new_tokens": 33}),
        COMPLETIONS | TABLES,
    ),
    Edit(
        "sets that are generated twice",
        Set({"generate/shipped_penalty": ["heldout"]}),
        COMPLETIONS | TABLES,
    ),
    Edit(
        "the engine",
        Set({"generate/backend": "vllm"}),
        {"generate_base_rows": 1} | COMPLETIONS | SAMPLES | TABLES,
    ),
    Edit("more samples", Set({"sampled_audit/samples": 64}), SAMPLES | TABLES),
    Edit("their temperature", Set({"sampled_audit/temperature": 0.7}), SAMPLES | TABLES),
    Edit(
        "who labels the samples",
        Set({"sampled_audit/judge": "lower-bound"}),
        {"audit_samples": 20, **TABLES},
    ),
    Edit(
        "one more judge of some of the samples",
        Set({"sampled_audit/opinions": [{"judge": "lower-bound", "where": {"init": "warm"}}]}),
        {"audit_samples": 8, **TABLES},
    ),
    Edit(
        "no samples any more",
        Set({"sampled_audit/enabled": False}),
        without(TABLES, "build_leak_at_k_table", "build_sampled_audit_table", "plot_leak_at_k"),
    ),
    Edit(
        "rows of one likelihood set",
        Set({"likelihood/sets/rwku-mia/max_prompts": 5}),
        {"score_likelihoods": 20, "evaluate_rwku": 20, **TABLES},
    ),
]
