"""SFT warm-up: one adapter per size, target and seed, shared by all rewards."""


def warmup_inputs(wildcards):
    """Split, answers, and what the monitor's reward needs."""
    target = wildcards.target
    inputs = {
        "split": f"results/data/{target}/split/manifest.json",
        "model": model_manifest(wildcards),
    }
    if CONFIG["warmup"]["objective"] == "broad":
        inputs["broad"] = f"results/data/{target}/broad/manifest.json"
    if CONFIG["warmup"]["monitor"]["enabled"]:
        name = "r2-rubric" if CONFIG["warmup"]["objective"] == "broad" else "r4-refusal"
        inputs |= reward_inputs(name, target)
    return inputs


def reward_inputs(reward, target):
    """Manifests that scoring with a reward needs: the detector, what the judge knows."""
    needs = SPECS.needs(reward)
    inputs = {"detector": detector_manifest()} if "detector" in needs else {}
    if "judge" in needs:
        inputs["knowledge"] = f"results/data/{target}/knowledge/manifest.json"
    return {name: path for name, path in inputs.items() if path}


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
    script:
        "../scripts/train_warmup.py"
