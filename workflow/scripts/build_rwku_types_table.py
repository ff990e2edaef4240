"""Entry point of rule build_rwku_types_table. RWKU scores by type."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.tables.rwku_types:build", globals().get("snakemake"))
