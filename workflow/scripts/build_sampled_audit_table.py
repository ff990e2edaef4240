"""Entry point of rule build_sampled_audit_table. Label rates of sampled completions."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.tables.sampled:build", globals().get("snakemake"))
