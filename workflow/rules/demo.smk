"""The embedded world: a chat model trained from scratch, with rows in RWKU's schema about it."""


rule build_demo_world:
    """Pretrain the demo's model on generated sentences and write the rows about its people."""
    output:
        model=directory("results/world/model"),
        rwku=directory("results/world/rwku"),
        knowledge=directory("results/world/knowledge"),
        manifest="results/world/manifest.json",
        run="results/world/run.json",
    log:
        "results/world/build_demo_world.log",
    benchmark:
        "results/world/build_demo_world.benchmark.tsv"
    conda:
        "../../envs/train.yaml"
    params:
        spec=stage_spec("build_demo_world"),
    script:
        "../scripts/build_demo_world.py"
