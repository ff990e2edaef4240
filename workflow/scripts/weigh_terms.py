"""Entry point of rule weigh_terms. Weigh forbidden terms."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main(
        "unlearning_grid.models.term_weights:weigh", globals().get("snakemake"), keep_result=True
    )
