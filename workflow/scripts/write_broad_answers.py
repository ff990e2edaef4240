"""Entry point of rule write_broad_answers. Write broad answers for the warm-up."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.data.broad:write", globals().get("snakemake"), keep_result=True)
