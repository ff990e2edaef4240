"""Entry point of rule generate_completions. Greedy completions of one evaluation."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main(
        "unlearning_grid.generate.greedy:generate", globals().get("snakemake"), keep_result=True
    )
