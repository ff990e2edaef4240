"""Entry point of rule build_heldout_audit_table. Held-out label rates."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.tables.heldout:build", globals().get("snakemake"))
