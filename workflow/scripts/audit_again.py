"""Entry point of rule audit_again. Label held-out completions once more."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.audit.heldout:audit", globals().get("snakemake"), keep_result=True)
