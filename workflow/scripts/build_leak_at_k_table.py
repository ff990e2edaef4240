"""Entry point of rule build_leak_at_k_table. leak@k of the held-out questions."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.tables.leak:build", globals().get("snakemake"))
