"""Entry point of rule audit_samples. Labels of one evaluation's samples."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.audit.samples:audit", globals().get("snakemake"), keep_result=True)
