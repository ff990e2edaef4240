"""Entry point of rule build_demo_world. Pretrain the demo's model and write its data."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main(
        "unlearning_grid.data.world.build:build", globals().get("snakemake"), keep_result=True
    )
