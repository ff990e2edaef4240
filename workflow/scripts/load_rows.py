"""Entry point of rule load_rows. Take one target's rows out of the data set."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.data.load:load_rows", globals().get("snakemake"))
