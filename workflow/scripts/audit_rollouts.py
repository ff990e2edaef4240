"""Entry point of rule audit_rollouts. Label the last rollouts of a training run."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.audit.terminal:audit", globals().get("snakemake"), keep_result=True)
