"""Entry point of rule evaluate_rwku. Score RWKU probes."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.rwku.score:score", globals().get("snakemake"))
