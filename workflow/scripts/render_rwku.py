"""Entry point of rule render_rwku. Render RWKU sets."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.rwku.prompts:render_sets", globals().get("snakemake"))
