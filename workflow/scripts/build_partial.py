"""Entry point of rule build_partial. Tables and figures from what is there."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.tables.partial:build", globals().get("snakemake"))
