"""Entry point of rule evaluate_refusal_detectors. Check detectors on labelled sentences."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main(
        "unlearning_grid.models.detector_check:evaluate",
        globals().get("snakemake"),
        keep_result=True,
    )
