"""Entry point of rule sample_completions. Sampled completions of one evaluation."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main(
        "unlearning_grid.generate.sampled:sample", globals().get("snakemake"), keep_result=True
    )
