"""Entry point of rule build_terminal_audit_table. Label rates of the last rollouts."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.tables.terminal:build", globals().get("snakemake"))
