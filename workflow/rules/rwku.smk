"""Scores on the RWKU probes."""


localrules:
    evaluate_rwku,


rule evaluate_rwku:
    """Score the completions of the forget and neighbor probes."""
    input:
        completions="results/completions/{policy}/on/{target}/manifest.json",
    output:
        scores="results/rwku/{policy}/on/{target}/scores.parquet",
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
