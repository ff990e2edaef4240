"""Rows of a target, what a rules judge knows about it, its split, its broad answers."""


localrules:
    load_rows,
    write_knowledge,
    split_target,


rule load_rows:
    """Take one target's rows out of the data set: its questions, or its probes."""
    input:
        world=world_manifest,
    output:
        rows=directory("results/data/{target}/{part}/rows"),
        manifest="results/data/{target}/{part}/manifest.json",
        run="results/data/{target}/{part}/run.json",
    log:
        "results/data/{target}/{part}/load_rows.log",
    benchmark:
        "results/data/{target}/{part}/load_rows.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("load_rows"),
    script:
        "../scripts/load_rows.py"


rule write_knowledge:
    """Collect names and facts of a target for the judge that works by rules."""
    input:
        world=world_manifest,
        probes="results/data/{target}/probes/manifest.json",
    output:
        knowledge="results/data/{target}/knowledge/knowledge.json",
        manifest="results/data/{target}/knowledge/manifest.json",
        run="results/data/{target}/knowledge/run.json",
    log:
        "results/data/{target}/knowledge/write_knowledge.log",
    benchmark:
        "results/data/{target}/knowledge/write_knowledge.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("write_knowledge"),
    script:
        "../scripts/write_knowledge.py"


rule weigh_terms:
    """Weigh a target's forbidden terms by how central they are to its name."""
    input:
        model=embedder_model,
    output:
        weights="results/data/{target}/term_weights/weights.json",
        manifest="results/data/{target}/term_weights/manifest.json",
        run="results/data/{target}/term_weights/run.json",
    log:
        "results/data/{target}/term_weights/weigh_terms.log",
    benchmark:
        "results/data/{target}/term_weights/weigh_terms.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("weigh_terms"),
    script:
        "../scripts/weigh_terms.py"


rule split_target:
    """Split a target's questions into held-out, GRPO and warm-up parts, as the study did."""
    input:
        rows="results/data/{target}/questions/manifest.json",
    output:
        heldout="results/data/{target}/split/heldout.jsonl",
        grpo_train="results/data/{target}/split/grpo_train.jsonl",
        sft_train="results/data/{target}/split/sft_train.jsonl",
        sft_test="results/data/{target}/split/sft_test.jsonl",
        report="results/data/{target}/split/report.json",
        manifest="results/data/{target}/split/manifest.json",
        run="results/data/{target}/split/run.json",
    log:
        "results/data/{target}/split/split_target.log",
    benchmark:
        "results/data/{target}/split/split_target.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("split_target"),
    script:
        "../scripts/split_target.py"


rule train_refusal_detector:
    """Train a small refusal classifier where none is taken from the hub."""
    input:
        rows=detector_rows,
        tokenizer=lambda wildcards: built_model(CONFIG["detector"]["train"]["size"]),
    output:
        model=directory("results/detector/{detector}/model"),
        report="results/detector/{detector}/report.json",
        manifest="results/detector/{detector}/manifest.json",
        run="results/detector/{detector}/run.json",
    log:
        "results/detector/{detector}/train_refusal_detector.log",
    benchmark:
        "results/detector/{detector}/train_refusal_detector.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("train_refusal_detector"),
    script:
        "../scripts/train_refusal_detector.py"


rule write_broad_answers:
    """Answer the warm-up questions on the broader topic, without naming the target."""
    input:
        split="results/data/{target}/split/manifest.json",
        knowledge="results/data/{target}/knowledge/manifest.json",
        model=teacher_model,
    output:
        answers="results/data/{target}/broad/answers.jsonl",
        report="results/data/{target}/broad/report.json",
        manifest="results/data/{target}/broad/manifest.json",
        run="results/data/{target}/broad/run.json",
    log:
        "results/data/{target}/broad/write_broad_answers.log",
    benchmark:
        "results/data/{target}/broad/write_broad_answers.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("write_broad_answers"),
        operations=stage_operations("write_broad_answers"),
    script:
        "../scripts/write_broad_answers.py"
