"""Numbers on the command line."""

import argparse
from math import isfinite


def amount(text: str) -> float:
    """A finite number from 0 on, as argparse's `type`."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no finite number from 0 on")
    return value
