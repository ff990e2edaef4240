"""Entry point of rule train_grpo. GRPO of one cell."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main(
        "unlearning_grid.train.grpo:train", globals().get("snakemake"), keep_result=True, many=True
    )
