"""Entry point of rule audit_completions. Label held-out completions."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.audit.heldout:audit", globals().get("snakemake"), keep_result=True)
