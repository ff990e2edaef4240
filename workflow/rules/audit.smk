"""What completions are: leak, refusal, broad answer. And what judges and detectors are worth."""


# Beside the controller: by rules it is text matching, seconds; a paid judge asks over the network,
# which the controller's machine has, and no other work.
localrules:
    audit_samples,


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
        operations=stage_operations("audit_completions"),
    script:
        "../scripts/audit_completions.py"


rule audit_again:
    """Another opinion on the same completions: another judge, or the same one asked anew."""
    input:
        completions="results/completions/{policy}/on/{target}/manifest.json",
        knowledge=judge_knowledge,
        detector=detector_manifest,
    output:
        labels="results/opinions/{judge}/r{replicate}/{policy}/on/{target}/labels.parquet",
        manifest="results/opinions/{judge}/r{replicate}/{policy}/on/{target}/manifest.json",
        run="results/opinions/{judge}/r{replicate}/{policy}/on/{target}/run.json",
    log:
        "results/opinions/{judge}/r{replicate}/{policy}/on/{target}/audit_again.log",
    benchmark:
        "results/opinions/{judge}/r{replicate}/{policy}/on/{target}/audit_again.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("audit_again"),
        operations=stage_operations("audit_again"),
    script:
        "../scripts/audit_again.py"


rule audit_rollouts:
    """Label what a policy wrote in the last rollouts of its training."""
    input:
        trained="results/{policy}/manifest.json",
        knowledge=terminal_knowledge,
        detector=detector_manifest,
    output:
        labels="results/terminal/{policy}/on/{target}/labels.parquet",
        manifest="results/terminal/{policy}/on/{target}/manifest.json",
        run="results/terminal/{policy}/on/{target}/run.json",
    log:
        "results/terminal/{policy}/on/{target}/audit_rollouts.log",
    benchmark:
        "results/terminal/{policy}/on/{target}/audit_rollouts.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("audit_rollouts"),
        operations=stage_operations("audit_rollouts"),
    script:
        "../scripts/audit_rollouts.py"


rule audit_samples:
    """Label one evaluation's samples, and its greedy completions, by the same judge."""
    input:
        completions="results/completions/{policy}/on/{target}/manifest.json",
        samples="results/samples/{policy}/on/{target}/manifest.json",
        knowledge=judge_knowledge,
    output:
        labels="results/sampled/{judge}/{policy}/on/{target}/labels.parquet",
        manifest="results/sampled/{judge}/{policy}/on/{target}/manifest.json",
        run="results/sampled/{judge}/{policy}/on/{target}/run.json",
    log:
        "results/sampled/{judge}/{policy}/on/{target}/audit_samples.log",
    benchmark:
        "results/sampled/{judge}/{policy}/on/{target}/audit_samples.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("audit_samples"),
        operations=stage_operations("audit_samples"),
    script:
        "../scripts/audit_samples.py"


rule evaluate_refusal_detectors:
    """What the refusal detectors make of labelled sentences."""
    input:
        detector=detector_manifest,
    output:
        sentences="results/tables/refusal_detectors/sentences.parquet",
        table="results/tables/refusal_detectors.parquet",
        csv="results/tables/refusal_detectors.csv",
        manifest="results/tables/refusal_detectors/manifest.json",
        run="results/tables/refusal_detectors/run.json",
    log:
        "results/tables/refusal_detectors/evaluate_refusal_detectors.log",
    benchmark:
        "results/tables/refusal_detectors/evaluate_refusal_detectors.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("evaluate_refusal_detectors"),
    script:
        "../scripts/evaluate_refusal_detectors.py"
