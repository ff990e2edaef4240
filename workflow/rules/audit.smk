"""What the held-out completions are: leak, refusal, broad answer."""


rule audit_completions:
    """Label every held-out completion of one evaluation."""
    input:
        completions="results/completions/{policy}/on/{target}/manifest.json",
        knowledge=judge_knowledge,
        detector=detector_manifest,
    output:
        labels="results/audit/{policy}/on/{target}/labels.parquet",
        manifest="results/audit/{policy}/on/{target}/manifest.json",
        run="results/audit/{policy}/on/{target}/run.json",
    log:
        "results/audit/{policy}/on/{target}/audit_completions.log",
    benchmark:
        "results/audit/{policy}/on/{target}/audit_completions.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("audit_completions"),
    script:
        "../scripts/audit_completions.py"
