"""Entry point of rule write_plan. List what the grid should hold."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.tables.plan:write", globals().get("snakemake"))
