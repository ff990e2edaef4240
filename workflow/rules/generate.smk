"""Completions of every policy, greedy and sampled: base models, warm-ups, GRPO cells."""


# Rows are kept where the two rules below look for theirs. `ancient`: these are not run again because
# this one was; a new target adds its rows, and the other targets' results stay as they are.
rule generate_base_rows:
    """A base model's completions for all targets in one start of the engine."""
    input:
        splits=base_splits,
        prompts=base_prompts,
        model=model_manifest,
    output:
        rows="results/base_rows/{size}/rows.json",
        manifest="results/base_rows/{size}/manifest.json",
        run="results/base_rows/{size}/run.json",
    log:
        "results/base_rows/{size}/generate_base_rows.log",
    benchmark:
        "results/base_rows/{size}/generate_base_rows.benchmark.tsv"
    conda:
        f"../../envs/{SPECS.environment('generate_base_rows')}.yaml"
    params:
        spec=stage_spec("generate_base_rows"),
        operations=stage_operations("generate_base_rows"),
    script:
        "../scripts/generate_base_rows.py"


rule generate_completions:
    """All greedy prompt sets of one evaluation in one job; unchanged rows are reused."""
    input:
        split="results/data/{target}/split/manifest.json",
        prompts=prompts_manifest,
        policy=policy_manifest,
        model=model_manifest,
        rows=ancient(base_rows),
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


rule sample_completions:
    """The held-out questions of one evaluation, each sampled many times; more samples add rows."""
    input:
        split="results/data/{target}/split/manifest.json",
        policy=policy_manifest,
        model=model_manifest,
        rows=ancient(base_rows),
    output:
        samples="results/samples/{policy}/on/{target}/samples.parquet",
        manifest="results/samples/{policy}/on/{target}/manifest.json",
        run="results/samples/{policy}/on/{target}/run.json",
    log:
        "results/samples/{policy}/on/{target}/sample_completions.log",
    benchmark:
        "results/samples/{policy}/on/{target}/sample_completions.benchmark.tsv"
    conda:
        f"../../envs/{SPECS.environment('sample_completions')}.yaml"
    params:
        spec=stage_spec("sample_completions"),
        operations=stage_operations("sample_completions"),
    script:
        "../scripts/sample_completions.py"
