"""Entry point of rule plot_training_dynamics. Training dynamics."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.tables.dynamics:plot", globals().get("snakemake"))
