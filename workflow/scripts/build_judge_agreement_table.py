"""Entry point of rule build_judge_agreement_table. Tabulate how far judges agree."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main("unlearning_grid.tables.agreement:build", globals().get("snakemake"))
