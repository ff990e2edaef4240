"""GRPO: one adapter per cell of the grid."""


rule train_grpo:
    """Unlearn one target with one reward from one start; resumes after a kill."""
    input:
        unpack(grpo_inputs),
    output:
        adapter=directory(
            "results/grpo/{size}/{target}/{init}/{reward}/s{seed}/adapter"
        ),
        adapters=directory(
            "results/grpo/{size}/{target}/{init}/{reward}/s{seed}/adapters"
        ),
        metrics="results/grpo/{size}/{target}/{init}/{reward}/s{seed}/metrics.parquet",
        rollouts="results/grpo/{size}/{target}/{init}/{reward}/s{seed}/rollouts.parquet",
        outcome="results/grpo/{size}/{target}/{init}/{reward}/s{seed}/outcome.json",
        manifest="results/grpo/{size}/{target}/{init}/{reward}/s{seed}/manifest.json",
        run="results/grpo/{size}/{target}/{init}/{reward}/s{seed}/run.json",
    log:
        "results/grpo/{size}/{target}/{init}/{reward}/s{seed}/train_grpo.log",
    benchmark:
        "results/grpo/{size}/{target}/{init}/{reward}/s{seed}/train_grpo.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("train_grpo"),
        operations=stage_operations("train_grpo"),
    script:
        "../scripts/train_grpo.py"
