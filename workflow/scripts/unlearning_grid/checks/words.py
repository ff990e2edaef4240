"""Problems that many keys share: a name that nobody knows, a variable that is not set."""

import os
import re
from collections.abc import Iterator
from typing import Any

from unlearning_grid.config import nearest


def one_of(where: str, value: Any, known: Any, fix: str) -> Iterator[str]:
    """A problem when `value` is not among `known`, with the nearest name."""
    if value not in known:
        hint = nearest(value, known)
        yield f'{where}: "{value}" is not one of {sorted(known)}.{hint} {fix}'.rstrip()


def variables(where: str, name: str) -> Iterator[str]:
    """A problem for each environment variable in `name` that is not set."""
    for variable in re.findall(r"\$\{?(\w+)", name):
        if variable not in os.environ:
            yield f"{where}: environment variable {variable} is not set; set it or write a path."
