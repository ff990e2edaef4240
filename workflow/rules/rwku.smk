"""The RWKU benchmark: its sets as prompts, likelihoods, scores."""


localrules:
    render_rwku,
    evaluate_rwku,


rule render_rwku:
    """Render and tokenise RWKU's sets for one size and target, once for all its policies."""
    input:
        probes="results/data/{target}/probes/manifest.json",
        benchmark="results/data/{target}/benchmark/manifest.json",
        model=model_manifest,
    output:
        prompts=directory("results/prompts/{size}/on/{target}/prompts"),
        manifest="results/prompts/{size}/on/{target}/manifest.json",
        run="results/prompts/{size}/on/{target}/run.json",
    log:
        "results/prompts/{size}/on/{target}/render_rwku.log",
    benchmark:
        "results/prompts/{size}/on/{target}/render_rwku.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("render_rwku"),
    script:
        "../scripts/render_rwku.py"


rule score_likelihoods:
    """How likely a policy finds membership texts, answer letters and answer choices."""
    input:
        prompts=prompts_manifest,
        policy=policy_manifest,
        model=model_manifest,
    output:
        mia="results/likelihoods/{policy}/on/{target}/mia.parquet",
        general="results/likelihoods/{policy}/on/{target}/general.parquet",
        truthfulness="results/likelihoods/{policy}/on/{target}/truthfulness.parquet",
        manifest="results/likelihoods/{policy}/on/{target}/manifest.json",
        run="results/likelihoods/{policy}/on/{target}/run.json",
    log:
        "results/likelihoods/{policy}/on/{target}/score_likelihoods.log",
    benchmark:
        "results/likelihoods/{policy}/on/{target}/score_likelihoods.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("score_likelihoods"),
        operations=stage_operations("score_likelihoods"),
    script:
        "../scripts/score_likelihoods.py"


rule evaluate_rwku:
    """Score every set in every convention: one file of rows per set."""
    input:
        prompts=prompts_manifest,
        completions="results/completions/{policy}/on/{target}/manifest.json",
        likelihoods="results/likelihoods/{policy}/on/{target}/manifest.json",
    output:
        forget="results/rwku/{policy}/on/{target}/forget.parquet",
        neighbor="results/rwku/{policy}/on/{target}/neighbor.parquet",
        mia="results/rwku/{policy}/on/{target}/mia.parquet",
        general="results/rwku/{policy}/on/{target}/general.parquet",
        reason="results/rwku/{policy}/on/{target}/reason.parquet",
        truthfulness="results/rwku/{policy}/on/{target}/truthfulness.parquet",
        factuality="results/rwku/{policy}/on/{target}/factuality.parquet",
        fluency="results/rwku/{policy}/on/{target}/fluency.parquet",
        manifest="results/rwku/{policy}/on/{target}/manifest.json",
        run="results/rwku/{policy}/on/{target}/run.json",
    log:
        "results/rwku/{policy}/on/{target}/evaluate_rwku.log",
    benchmark:
        "results/rwku/{policy}/on/{target}/evaluate_rwku.benchmark.tsv"
    conda:
        "../../envs/analysis.yaml"
    params:
        spec=stage_spec("evaluate_rwku"),
    script:
        "../scripts/evaluate_rwku.py"
