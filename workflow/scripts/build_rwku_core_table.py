"""Entry point of rule build_rwku_core_table. RWKU core scores."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.tables.rwku_core:build", globals().get("snakemake"))
