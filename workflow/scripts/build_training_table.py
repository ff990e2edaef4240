"""Entry point of rule build_training_table. Training outcomes."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.tables.training:build", globals().get("snakemake"))
