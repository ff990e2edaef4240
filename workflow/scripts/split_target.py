"""Entry point of rule split_target. Split a target's questions."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.data.split:split", globals().get("snakemake"))
