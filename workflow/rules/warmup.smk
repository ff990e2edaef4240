"""SFT warm-up: one adapter per size, target and seed, shared by all rewards."""


rule train_warmup:
    """Supervised warm-up on broad answers, with a sampled stop rule; resumes after a kill."""
    input:
        unpack(warmup_inputs),
    output:
        adapter=directory("results/warmup/{size}/{target}/s{seed}/adapter"),
        metrics="results/warmup/{size}/{target}/s{seed}/metrics.parquet",
        monitor="results/warmup/{size}/{target}/s{seed}/monitor.parquet",
        outcome="results/warmup/{size}/{target}/s{seed}/outcome.json",
        manifest="results/warmup/{size}/{target}/s{seed}/manifest.json",
        run="results/warmup/{size}/{target}/s{seed}/run.json",
    log:
        "results/warmup/{size}/{target}/s{seed}/train_warmup.log",
    benchmark:
        "results/warmup/{size}/{target}/s{seed}/train_warmup.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("train_warmup"),
        operations=stage_operations("train_warmup"),
    script:
        "../scripts/train_warmup.py"
