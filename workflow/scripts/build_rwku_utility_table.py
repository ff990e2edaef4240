"""Entry point of rule build_rwku_utility_table. RWKU utility scores."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.tables.rwku_utility:build", globals().get("snakemake"))
