"""Greedy completions of every policy: base models, warm-ups, GRPO cells."""


rule generate_completions:
    """All greedy prompt sets of one evaluation in one job; unchanged sets are reused."""
    input:
        split="results/data/{target}/split/manifest.json",
        prompts=prompts_manifest,
        policy=policy_manifest,
        model=model_manifest,
    output:
        completions="results/completions/{policy}/on/{target}/completions.parquet",
        manifest="results/completions/{policy}/on/{target}/manifest.json",
        run="results/completions/{policy}/on/{target}/run.json",
    log:
        "results/completions/{policy}/on/{target}/generate_completions.log",
    benchmark:
        "results/completions/{policy}/on/{target}/generate_completions.benchmark.tsv"
    conda:
        f"../../envs/{SPECS.environment('generate_completions')}.yaml"
    params:
        spec=stage_spec("generate_completions"),
        operations=stage_operations("generate_completions"),
    script:
        "../scripts/generate_completions.py"
