"""Entry point of rule train_refusal_detector. Train a refusal classifier."""

from unlearning_grid.runtime.stage import stage_main

if __name__ == "__main__":
    stage_main(
        "unlearning_grid.models.detector_training:train",
        globals().get("snakemake"),
        keep_result=True,
    )
