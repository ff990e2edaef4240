"""Entry point of rule plot_leak_at_k. Leakage against the number of samples."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.tables.leak_figure:plot", globals().get("snakemake"))
