"""Entry point of rule generate_base_rows. One engine for all targets."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main(
        "unlearning_grid.generate.shared:generate", globals().get("snakemake"), keep_result=True
    )
