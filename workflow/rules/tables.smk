"""Tables and figures, rebuilt from rows whenever the rows change. Cheap, so they run locally."""

NAMES = [
    "cells",
    "training",
    "heldout_audit",
    "judge_agreement",
    "refusal_detectors",
    "rwku_core",
    "rwku_utility",
    "rwku_types",
]
NAMES += ["terminal_audit"] if CONFIG["terminal_audit"]["enabled"] else []
NAMES += ["leak_at_k", "sampled_audit"] if CONFIG["sampled_audit"]["enabled"] else []
TABLES = [f"results/tables/{name}.parquet" for name in NAMES]
FIGURES = ["results/figures/training_dynamics.png"]
FIGURES += (
    ["results/figures/leak_at_k.png"] if CONFIG["sampled_audit"]["enabled"] else []
)


localrules:
    write_plan,
    build_partial,
    build_cells_table,
    build_training_table,
    build_heldout_audit_table,
    build_terminal_audit_table,
    build_leak_at_k_table,
    build_sampled_audit_table,
    build_judge_agreement_table,
    build_rwku_core_table,
    build_rwku_utility_table,
    build_rwku_types_table,
    plot_training_dynamics,
    plot_leak_at_k,


rule write_plan:
    """List every result the grid should hold, with the spec that makes it current."""
    output:
        plan="results/plan/plan.json",
        manifest="results/plan/manifest.json",
        run="results/plan/run.json",
    log:
        "results/plan/write_plan.log",
    benchmark:
        "results/plan/write_plan.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=stage_spec("write_plan"),
        operations=stage_operations("write_plan"),
    script:
        "../scripts/write_plan.py"


rule build_cells_table:
    """Every cell of the grid with its status."""
    input:
        plan="results/plan/manifest.json",
        trained=trained_manifests,
        audit=lambda wildcards: evaluation_manifests("audit"),
        rwku=lambda wildcards: evaluation_manifests("rwku"),
    output:
        table="results/tables/cells.parquet",
        csv="results/tables/cells.csv",
        manifest="results/tables/cells/manifest.json",
        run="results/tables/cells/run.json",
    log:
        "results/tables/cells/build_cells_table.log",
    benchmark:
        "results/tables/cells/build_cells_table.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=stage_spec("build_cells_table"),
    script:
        "../scripts/build_cells_table.py"


rule build_training_table:
    """What happened during each training run."""
    input:
        plan="results/plan/manifest.json",
        trained=trained_manifests,
    output:
        table="results/tables/training.parquet",
        csv="results/tables/training.csv",
        manifest="results/tables/training/manifest.json",
        run="results/tables/training/run.json",
    log:
        "results/tables/training/build_training_table.log",
    benchmark:
        "results/tables/training/build_training_table.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=stage_spec("build_training_table"),
    script:
        "../scripts/build_training_table.py"


rule build_heldout_audit_table:
    """Label rates of the held-out completions, over targets."""
    input:
        plan="results/plan/manifest.json",
        trained=trained_manifests,
        audit=lambda wildcards: evaluation_manifests("audit"),
    output:
        table="results/tables/heldout_audit.parquet",
        csv="results/tables/heldout_audit.csv",
        targets="results/tables/heldout_audit_targets.parquet",
        targets_csv="results/tables/heldout_audit_targets.csv",
        manifest="results/tables/heldout_audit/manifest.json",
        run="results/tables/heldout_audit/run.json",
    log:
        "results/tables/heldout_audit/build_heldout_audit_table.log",
    benchmark:
        "results/tables/heldout_audit/build_heldout_audit_table.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=stage_spec("build_heldout_audit_table"),
    script:
        "../scripts/build_heldout_audit_table.py"


rule build_terminal_audit_table:
    """Label rates of the last rollouts, over targets."""
    input:
        plan="results/plan/manifest.json",
        trained=trained_manifests,
        audit=terminal_manifests,
    output:
        table="results/tables/terminal_audit.parquet",
        csv="results/tables/terminal_audit.csv",
        targets="results/tables/terminal_audit_targets.parquet",
        targets_csv="results/tables/terminal_audit_targets.csv",
        manifest="results/tables/terminal_audit/manifest.json",
        run="results/tables/terminal_audit/run.json",
    log:
        "results/tables/terminal_audit/build_terminal_audit_table.log",
    benchmark:
        "results/tables/terminal_audit/build_terminal_audit_table.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=stage_spec("build_terminal_audit_table"),
    script:
        "../scripts/build_terminal_audit_table.py"


rule build_leak_at_k_table:
    """leak@k of the held-out questions, per evaluation and over targets."""
    input:
        plan="results/plan/manifest.json",
        trained=trained_manifests,
        audit=sampled_manifests,
    output:
        table="results/tables/leak_at_k.parquet",
        csv="results/tables/leak_at_k.csv",
        targets="results/tables/leak_at_k_targets.parquet",
        targets_csv="results/tables/leak_at_k_targets.csv",
        manifest="results/tables/leak_at_k/manifest.json",
        run="results/tables/leak_at_k/run.json",
    log:
        "results/tables/leak_at_k/build_leak_at_k_table.log",
    benchmark:
        "results/tables/leak_at_k/build_leak_at_k_table.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=stage_spec("build_leak_at_k_table"),
    script:
        "../scripts/build_leak_at_k_table.py"


rule build_sampled_audit_table:
    """Label rates of the sampled completions, over targets."""
    input:
        plan="results/plan/manifest.json",
        trained=trained_manifests,
        audit=sampled_manifests,
    output:
        table="results/tables/sampled_audit.parquet",
        csv="results/tables/sampled_audit.csv",
        targets="results/tables/sampled_audit_targets.parquet",
        targets_csv="results/tables/sampled_audit_targets.csv",
        manifest="results/tables/sampled_audit/manifest.json",
        run="results/tables/sampled_audit/run.json",
    log:
        "results/tables/sampled_audit/build_sampled_audit_table.log",
    benchmark:
        "results/tables/sampled_audit/build_sampled_audit_table.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=stage_spec("build_sampled_audit_table"),
    script:
        "../scripts/build_sampled_audit_table.py"


rule build_judge_agreement_table:
    """How far judges agree, with each other, with themselves and with the detector."""
    input:
        plan="results/plan/manifest.json",
        trained=trained_manifests,
        audit=lambda wildcards: evaluation_manifests("audit"),
        opinions=opinion_manifests,
    output:
        table="results/tables/judge_agreement.parquet",
        csv="results/tables/judge_agreement.csv",
        manifest="results/tables/judge_agreement/manifest.json",
        run="results/tables/judge_agreement/run.json",
    log:
        "results/tables/judge_agreement/build_judge_agreement_table.log",
    benchmark:
        "results/tables/judge_agreement/build_judge_agreement_table.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=stage_spec("build_judge_agreement_table"),
    script:
        "../scripts/build_judge_agreement_table.py"


rule build_rwku_core_table:
    """Forget, neighbor and membership scores, absolute and against the base model, over targets."""
    input:
        plan="results/plan/manifest.json",
        trained=trained_manifests,
        rwku=lambda wildcards: evaluation_manifests("rwku"),
    output:
        table="results/tables/rwku_core.parquet",
        csv="results/tables/rwku_core.csv",
        targets="results/tables/rwku_core_targets.parquet",
        targets_csv="results/tables/rwku_core_targets.csv",
        manifest="results/tables/rwku_core/manifest.json",
        run="results/tables/rwku_core/run.json",
    log:
        "results/tables/rwku_core/build_rwku_core_table.log",
    benchmark:
        "results/tables/rwku_core/build_rwku_core_table.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=stage_spec("build_rwku_core_table"),
    script:
        "../scripts/build_rwku_core_table.py"


rule build_rwku_utility_table:
    """Utility scores, absolute and against the base model, over targets."""
    input:
        plan="results/plan/manifest.json",
        trained=trained_manifests,
        rwku=lambda wildcards: evaluation_manifests("rwku"),
    output:
        table="results/tables/rwku_utility.parquet",
        csv="results/tables/rwku_utility.csv",
        targets="results/tables/rwku_utility_targets.parquet",
        targets_csv="results/tables/rwku_utility_targets.csv",
        manifest="results/tables/rwku_utility/manifest.json",
        run="results/tables/rwku_utility/run.json",
    log:
        "results/tables/rwku_utility/build_rwku_utility_table.log",
    benchmark:
        "results/tables/rwku_utility/build_rwku_utility_table.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=stage_spec("build_rwku_utility_table"),
    script:
        "../scripts/build_rwku_utility_table.py"


rule build_rwku_types_table:
    """Forget scores by adversarial type, absolute and against the base model, over targets."""
    input:
        plan="results/plan/manifest.json",
        trained=trained_manifests,
        rwku=lambda wildcards: evaluation_manifests("rwku"),
    output:
        table="results/tables/rwku_types.parquet",
        csv="results/tables/rwku_types.csv",
        targets="results/tables/rwku_types_targets.parquet",
        targets_csv="results/tables/rwku_types_targets.csv",
        manifest="results/tables/rwku_types/manifest.json",
        run="results/tables/rwku_types/run.json",
    log:
        "results/tables/rwku_types/build_rwku_types_table.log",
    benchmark:
        "results/tables/rwku_types/build_rwku_types_table.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=stage_spec("build_rwku_types_table"),
    script:
        "../scripts/build_rwku_types_table.py"


rule plot_training_dynamics:
    """Reward, active groups, KL and completion length by step, cold and warm."""
    input:
        plan="results/plan/manifest.json",
        trained=trained_manifests,
    output:
        png="results/figures/training_dynamics.png",
        pdf="results/figures/training_dynamics.pdf",
        points="results/figures/training_dynamics.csv",
        manifest="results/figures/training_dynamics/manifest.json",
        run="results/figures/training_dynamics/run.json",
    log:
        "results/figures/training_dynamics/plot_training_dynamics.log",
    benchmark:
        "results/figures/training_dynamics/plot_training_dynamics.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=stage_spec("plot_training_dynamics"),
    script:
        "../scripts/plot_training_dynamics.py"


rule plot_leak_at_k:
    """Leakage against the number of samples: every policy beside its base model."""
    input:
        plan="results/plan/manifest.json",
        trained=trained_manifests,
        audit=sampled_manifests,
    output:
        png="results/figures/leak_at_k.png",
        pdf="results/figures/leak_at_k.pdf",
        points="results/figures/leak_at_k.csv",
        manifest="results/figures/leak_at_k/manifest.json",
        run="results/figures/leak_at_k/run.json",
    log:
        "results/figures/leak_at_k/plot_leak_at_k.log",
    benchmark:
        "results/figures/leak_at_k/plot_leak_at_k.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=stage_spec("plot_leak_at_k"),
    script:
        "../scripts/plot_leak_at_k.py"


rule partial:
    """The same tables and figures from what is there, every absent cell with its status."""
    input:
        "results/partial/manifest.json",


rule build_partial:
    """Collect what is there, without running anything that is missing."""
    input:
        plan="results/plan/manifest.json",
    output:
        tables=directory("results/partial/tables"),
        figures=directory("results/partial/figures"),
        manifest="results/partial/manifest.json",
        run="results/partial/run.json",
    log:
        "results/partial/build_partial.log",
    benchmark:
        "results/partial/build_partial.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=lambda wildcards: SPECS.text(
            "build_partial", state=state_digest(SPECS.plan())
        ),
    script:
        "../scripts/build_partial.py"
