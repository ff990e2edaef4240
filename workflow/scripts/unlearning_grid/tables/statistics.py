"""Medians, quartiles and the exact interval of a median, over targets."""

from collections.abc import Sequence
from math import comb

MIN_INTERVAL = 6


def quantile(values: Sequence[float], q: float) -> float:
    """Quantile by linear interpolation at position (n - 1) q, as in the study's tables."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * q
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Exact 95 % interval of the median from order statistics (binomial); None below N = 6.

    With N = 10 it runs from the 2nd to the 9th value (coverage 0.979).
    """
    n = len(values)
    if n < MIN_INTERVAL:
        return None
    rank, tail = 0, 0.0
    while 1 - 2 * (tail + comb(n, rank) / 2**n) >= 0.95:
        tail += comb(n, rank) / 2**n
        rank += 1
    ordered = sorted(values)
    return ordered[rank - 1], ordered[n - rank]


def summarise(values: Sequence[float]) -> dict[str, float | int | None]:
    """median, q1, q3, ci_low, ci_high and n of the values; None where there is no such number."""
    if not values:
        return dict.fromkeys(("median", "q1", "q3", "ci_low", "ci_high")) | {"n": 0}
    interval = median_interval(values) or (None, None)
    return {
        "median": quantile(values, 0.5),
        "q1": quantile(values, 0.25),
        "q3": quantile(values, 0.75),
        "ci_low": interval[0],
        "ci_high": interval[1],
        "n": len(values),
    }
