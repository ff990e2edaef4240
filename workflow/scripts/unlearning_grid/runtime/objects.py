"""Importing by name, where a static import would widen a code digest."""

import importlib
from typing import Any


def load_object(dotted: str) -> Any:
    """The object that "package.module:name" names."""
    module, _, name = dotted.partition(":")
    return getattr(importlib.import_module(module), name)
