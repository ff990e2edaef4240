"""Entry point of rule write_knowledge. Collect names and facts of a target."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.data.known:write", globals().get("snakemake"))
