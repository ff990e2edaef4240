"""The rules: which modules compute each, in which environment, and what names them to a spec."""

from unlearning_grid.checks import BENCHMARK, PROBES

# rule -> (root modules of its code digest, environment file)
STAGES: dict[str, tuple[tuple[str, ...], str]] = {
    "build_demo_world": (("data.world.build",), "train"),
    "load_rows": (("data.load",), "train"),
    "write_knowledge": (("data.known",), "train"),
    "split_target": (("data.split",), "train"),
    "train_refusal_detector": (("models.detector_training",), "train"),
    "write_broad_answers": (("data.broad",), "train"),
    "train_warmup": (("train.warmup",), "train"),
    "train_grpo": (("train.grpo",), "train"),
    "render_rwku": (("rwku.prompts",), "train"),
    "generate_base_rows": (("generate.shared",), "train"),
    "generate_completions": (("generate.greedy",), "train"),
    "sample_completions": (("generate.sampled",), "train"),
    "score_likelihoods": (("rwku.likelihood",), "train"),
    "audit_completions": (("audit.heldout",), "train"),
    "audit_again": (("audit.heldout",), "train"),
    "audit_rollouts": (("audit.terminal",), "train"),
    "audit_samples": (("audit.samples",), "train"),
    "evaluate_refusal_detectors": (("models.detector_check",), "train"),
    "weigh_terms": (("models.term_weights",), "train"),
    "evaluate_rwku": (("rwku.score",), "analysis"),
    "write_plan": (("tables.plan",), "analysis"),
    "build_partial": (("tables.partial",), "analysis"),
    "build_cells_table": (("tables.cells",), "analysis"),
    "build_training_table": (("tables.training",), "analysis"),
    "build_heldout_audit_table": (("tables.heldout",), "analysis"),
    "build_terminal_audit_table": (("tables.terminal",), "analysis"),
    "build_leak_at_k_table": (("tables.leak",), "analysis"),
    "build_sampled_audit_table": (("tables.sampled",), "analysis"),
    "build_judge_agreement_table": (("tables.agreement",), "analysis"),
    "build_rwku_core_table": (("tables.rwku_core",), "analysis"),
    "build_rwku_utility_table": (("tables.rwku_utility",), "analysis"),
    "build_rwku_types_table": (("tables.rwku_types",), "analysis"),
    "plot_training_dynamics": (("tables.dynamics",), "analysis"),
    "plot_leak_at_k": (("tables.leak_figure",), "analysis"),
}

ENGINE_STAGES = ("generate_base_rows", "generate_completions", "sample_completions")
ENGINE_SETTINGS = ("backend", "batch_size", "python", "vllm_memory_share")
DETECTOR_MODULE = "models.detector"
SENTENCES = "resources/refusal_sentences.yaml"
RULES_JUDGE = ("provider", "knowledge", "error_rate", "seed")
REMOTE_JUDGE = (
    "provider",
    "api",
    "structured",
    "model",
    "base_url",
    "key_variable",
    "effort",
    "temperature",
    "max_output_tokens",
)
PARTS = {
    "questions": lambda split: (split["source_config"],),
    "probes": lambda _split: PROBES,
    "benchmark": lambda _split: BENCHMARK,
}
