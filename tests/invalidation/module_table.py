"""Which stages compute with which modules of the library: what an edit of one runs again.

A line for every module, or one for all below a package (`runtime.*`); the longest that fits a
module counts. A new module needs one that says which stages it belongs to: those that would
compute something else if it were changed, and `-` for none of them.

`train_grpo:r0-lex` are the cells of this reward, `audit_again:far` the opinions of this judge: a
model behind an API, while `lower-bound` works by rules, as the audit's judge does.
"""

GROUPS = {
    "TRAINING": "train_warmup train_grpo",
    "RUBRIC": "train_warmup train_grpo:r2-rubric",  # the monitor of the warm-ups asks it, too
    "LEXICAL": "train_grpo:r0-lex train_grpo:r1-antirefusal train_grpo:exp-lex"
    " train_grpo:pagerank-lex",
    "DETECTED": "audit_completions audit_again audit_rollouts",
    "AUDITS": "DETECTED audit_samples",
    "RULES": "audit_completions audit_again:lower-bound audit_rollouts audit_samples RUBRIC",
    "ASKED": "generate_completions sample_completions score_likelihoods",
    "GENERATED": "generate_completions sample_completions generate_base_rows",
    "LEAK_TABLES": "build_leak_at_k_table build_sampled_audit_table plot_leak_at_k build_partial",
    "LABEL_TABLES": "build_heldout_audit_table build_terminal_audit_table"
    " build_judge_agreement_table LEAK_TABLES",
    "RWKU_TABLES": "build_rwku_core_table build_rwku_utility_table build_rwku_types_table"
    " build_partial",
    "TABLES": "LABEL_TABLES RWKU_TABLES build_cells_table build_training_table",
}

MODULES = {
    # Tracks, checks, looks things up, says where files lie: no result depends on it.
    "checks.*": "-",
    "config": "-",
    "errors": "-",
    "grid": "-",
    "ops.*": "-",
    "paths": "-",
    "runtime.*": "-",
    "spec.*": "-",
    "judge.registry": "-",
    "rewards.registry": "-",
    "generate.registry": "-",
    # When and how often a judge is asked, and what is kept; not what it is asked.
    "remote.*": "-",
    "remote.requests": "audit_again:far write_broad_answers",
    # Data.
    "data.world.*": "build_demo_world",
    "data.load": "load_rows",
    "data.split": "split_target",
    "data.known": "write_knowledge",
    "data.broad": "write_broad_answers",
    "data.hub": "load_rows",
    "data.gold": "write_knowledge RULES",
    "data.knowledge": "build_demo_world write_knowledge write_broad_answers"
    " train_refusal_detector RULES",
    "data.matching": "write_knowledge write_broad_answers evaluate_refusal_detectors AUDITS"
    " train_warmup LEXICAL train_grpo:r2-rubric train_grpo:r3-fuzzy",
    "data.probes": "build_demo_world render_rwku",
    "data.prompts": "generate_completions generate_base_rows score_likelihoods evaluate_rwku"
    " audit_samples",
    "data.rwku": "load_rows split_target write_knowledge write_broad_answers render_rwku TRAINING"
    " GENERATED",
    # Models.
    "models.load": "train_refusal_detector evaluate_refusal_detectors weigh_terms render_rwku"
    " write_broad_answers TRAINING ASKED generate_base_rows AUDITS",
    "models.policy": "ASKED generate_base_rows",
    "models.batches": "write_broad_answers render_rwku TRAINING ASKED generate_base_rows",
    "models.chat": "write_broad_answers render_rwku TRAINING GENERATED",
    "models.sampling": "write_broad_answers render_rwku TRAINING GENERATED",
    "models.streams": "write_broad_answers render_rwku TRAINING GENERATED",
    "models.likelihood": "score_likelihoods",
    "models.detector": "train_refusal_detector evaluate_refusal_detectors AUDITS RUBRIC"
    " train_grpo:r1-antirefusal train_grpo:r4-refusal",
    "models.detector_training": "train_refusal_detector",
    "models.detector_check": "evaluate_refusal_detectors",
    "models.term_weights": "weigh_terms",
    "models.gguf": "-",  # makes the model of `make rwku-cpu`, before any grid
    # Rewards and judges.
    "rewards.base": "TRAINING AUDITS LABEL_TABLES",
    "rewards.build": "TRAINING AUDITS",
    "rewards.lexical": "LEXICAL",
    "rewards.antirefusal": "train_grpo:r1-antirefusal",
    "rewards.rubric": "RUBRIC",
    "rewards.fuzzy": "train_grpo:r3-fuzzy",
    "rewards.refusal": "train_grpo:r4-refusal",
    "rewards.exponential": "train_grpo:exp-lex",
    "rewards.pagerank": "train_grpo:pagerank-lex",
    "rewards.term_report": "-",  # read by a command only
    "judge.base": "TRAINING AUDITS LABEL_TABLES",
    "judge.labels": "RUBRIC AUDITS LABEL_TABLES",
    "judge.names": "AUDITS TABLES plot_training_dynamics",
    "judge.repetition": "RUBRIC AUDITS",
    "judge.openai": "audit_again:far",
    "judge.rules": "RULES",
    "judge.lower_bound": "RULES",
    "judge.language": "RULES",
    "judge.noise": "RULES",
    # Training.
    "train.*": "TRAINING",
    "train.grpo": "train_grpo",
    "train.engine": "train_grpo",
    "train.scoring": "train_grpo",
    "train.warmup": "train_warmup",
    "train.monitor": "train_warmup",
    # Evaluation.
    "generate.*": "GENERATED",
    "generate.greedy": "generate_completions generate_base_rows",
    "generate.sampled": "sample_completions generate_base_rows",
    "generate.shared": "generate_base_rows",
    "generate.by_vllm": "-",  # of the other engine
    "generate.engine_errors": "-",
    "generate.agreement": "-",  # read by a command only
    "audit.heldout": "audit_completions audit_again",
    "audit.terminal": "audit_rollouts",
    "audit.samples": "audit_samples",
    "audit.label": "AUDITS",
    "rwku.prompts": "render_rwku",
    "rwku.likelihood": "score_likelihoods",
    "rwku.*": "evaluate_rwku",
    "rwku.membership": "score_likelihoods evaluate_rwku build_rwku_core_table build_partial",
    "rwku.conventions": "render_rwku score_likelihoods evaluate_rwku RWKU_TABLES",
    # Tables.
    "tables.plan": "write_plan",
    "tables.partial": "build_partial",
    "tables.results": "TABLES plot_training_dynamics",
    "tables.files": "TABLES",
    "tables.cells": "build_cells_table build_partial",
    "tables.training": "build_training_table build_partial",
    "tables.aggregate": "LABEL_TABLES RWKU_TABLES",
    "tables.statistics": "LABEL_TABLES RWKU_TABLES",
    "tables.heldout": "LABEL_TABLES",
    "tables.terminal": "build_terminal_audit_table build_partial",
    "diagnostics.leak": "LEAK_TABLES",
    "tables.leak": "LEAK_TABLES",
    "tables.sampled": "build_sampled_audit_table build_partial",
    "tables.leak_figure": "plot_leak_at_k build_partial",
    "tables.colours": "plot_training_dynamics plot_leak_at_k build_partial",
    "tables.agreement": "build_judge_agreement_table build_partial",
    "tables.rwku_scores": "RWKU_TABLES",
    "tables.rwku_core": "build_rwku_core_table build_partial",
    "tables.rwku_utility": "build_rwku_utility_table build_partial",
    "tables.rwku_types": "build_rwku_types_table build_partial",
    "tables.dynamics": "plot_training_dynamics build_partial",
}


def line_of(module: str) -> str | None:
    """The key of MODULES that counts for a module: itself, else the longest `package.*`."""
    if module in MODULES:
        return module
    packages = [key for key in MODULES if key.endswith(".*") and module.startswith(key[:-1])]
    return max(packages, key=len, default=None)


def stages_of(words: str) -> set[str]:
    """The stages that a line names, with groups written out."""
    found: set[str] = set()
    for word in words.split():
        if word in GROUPS:
            found |= stages_of(GROUPS[word])
        elif word != "-":
            found.add(word)
    return found
