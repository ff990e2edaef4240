"""Entry point of rule train_warmup. SFT warm-up of one adapter."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.train.warmup:train", globals().get("snakemake"), keep_result=True)
