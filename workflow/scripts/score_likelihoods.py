"""Entry point of rule score_likelihoods. Likelihoods of texts and choices."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main(
        "unlearning_grid.rwku.likelihood:score", globals().get("snakemake"), keep_result=True
    )
