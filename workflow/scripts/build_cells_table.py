"""Entry point of rule build_cells_table. Status of every cell."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.tables.cells:build", globals().get("snakemake"))
