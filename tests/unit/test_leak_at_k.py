"""leak@k of one prompt: against every subset, in simulation, and at its edges."""

import random
import statistics
from fractions import Fraction
from itertools import combinations
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlearning_grid.diagnostics.leak import leak_at_k, numbers


@pytest.mark.parametrize("n", range(1, 8))
def test_it_is_the_share_of_subsets_that_hold_a_leak(n: int) -> None:
    for c in range(n + 1):
        for k in range(1, n + 1):
            drawn = list(combinations([True] * c + [False] * (n - c), k))
            share = Fraction(sum(any(subset) for subset in drawn), len(drawn))
            assert leak_at_k(n, c, k) == float(share), (n, c, k)


@pytest.mark.parametrize(
    ("n", "c", "k", "value"),
    [
        (1, 0, 1, 0.0),
        (1, 1, 1, 1.0),
        (3, 1, 1, 1 / 3),  # to the last digit: 1 - 2/3 is not that in floating point
        (10, 3, 1, 0.3),
        (5, 2, 2, 0.7),  # 1 - 3/10
        (32, 1, 32, 1.0),
        (32, 1, 16, 0.5),
        (32, 0, 32, 0.0),
        (5, 3, 3, 1.0),  # only 2 do not leak
        (5, 2, 3, 0.9),  # exactly 3 do not: one subset of 10 is clean
        (200, 1, 128, 0.64),
        (200, 100, 100, 1.0),  # one clean subset of 10^59
    ],
)
def test_values_by_hand(n: int, c: int, k: int, value: float) -> None:
    assert leak_at_k(n, c, k) == value


@pytest.mark.parametrize(
    ("n", "c", "k"), [(4, 1, 0), (4, 1, -1), (4, 1, 5), (0, 0, 1), (4, -1, 2), (4, 5, 2)]
)
def test_what_cannot_be_drawn_or_counted_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"verdicts|leaks"):
        leak_at_k(n, c, k)


@given(st.integers(1, 200), st.data())
def test_it_grows_with_k_and_with_leaks_between_0_and_1(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    value = leak_at_k(n, c, k)
    assert 0 <= value <= 1 and (value == 0) == (c == 0)
    if k < n:
        assert value <= leak_at_k(n, c, k + 1)
    if c < n:
        assert value <= leak_at_k(n, c + 1, k)


@pytest.mark.parametrize("k", [1, 2, 8, 32])
def test_planted_leak_rates_are_recovered(k: int) -> None:
    """Prompts leak at rates of their own; k draws of one leak with chance 1 - (1 - p)^k."""
    generator, n = random.Random(7), 32
    rates = [generator.betavariate(0.3, 3.0) for _ in range(4000)]
    errors = []
    for p in rates:
        c = sum(generator.random() < p for _ in range(n))
        errors.append(leak_at_k(n, c, k) - (1 - (1 - p) ** k))
    standard_error = statistics.stdev(errors) / sqrt(len(errors))
    assert abs(statistics.fmean(errors)) < 4 * standard_error
    assert standard_error < 0.005, "so that a biased estimate is seen"


def test_the_plain_share_of_leaks_to_the_kth_power_would_be_biased() -> None:
    """What the simulation can tell: 1 - (1 - c/n)^k is too low with few samples."""
    generator, n, k = random.Random(7), 8, 8
    rates = [generator.betavariate(0.3, 3.0) for _ in range(2000)]
    errors = []
    for p in rates:
        c = sum(generator.random() < p for _ in range(n))
        errors.append(1 - (1 - c / n) ** k - (1 - (1 - p) ** k))
    standard_error = statistics.stdev(errors) / sqrt(len(errors))
    assert statistics.fmean(errors) < -4 * standard_error


@pytest.mark.parametrize(
    ("samples", "ks"),
    [
        (1, [1]),
        (2, [1, 2]),
        (3, [1, 2, 3]),
        (4, [1, 2, 4]),
        (6, [1, 2, 4, 6]),
        (32, [1, 2, 4, 8, 16, 32]),
        (200, [1, 2, 4, 8, 16, 32, 64, 128, 200]),
    ],
)
def test_the_ks_double_up_to_the_number_of_samples(samples: int, ks: list[int]) -> None:
    assert numbers(samples) == ks


def test_no_samples_have_no_k() -> None:
    with pytest.raises(ValueError, match="samples: 0"):
        numbers(0)
