"""Medians over targets: quantiles as numpy has them, intervals with their exact coverage."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlearning_grid.tables.statistics import MIN_INTERVAL, median_interval, quantile, summarise

numbers = st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=40)


@given(numbers, st.floats(0, 1))
def test_quantiles_are_numpys_linear_ones(values: list[float], q: float) -> None:
    expected = float(np.quantile(values, q, method="linear"))
    assert quantile(values, q) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_quantiles_by_hand() -> None:
    # positions (n - 1) q of 4 values: 0.75, 1.5, 2.25
    values = [4.0, 1.0, 3.0, 2.0]
    assert [quantile(values, q) for q in (0, 0.25, 0.5, 0.75, 1)] == [1.0, 1.75, 2.5, 3.25, 4.0]
    assert quantile([5.0], 0.25) == 5.0


@pytest.mark.parametrize(
    ("n", "low", "high"),
    [(6, 1, 6), (7, 1, 7), (8, 1, 8), (9, 2, 8), (10, 2, 9), (11, 2, 10), (12, 3, 10), (20, 6, 15)],
)
def test_the_interval_of_the_median_runs_between_these_ranks(n: int, low: int, high: int) -> None:
    values = [float(rank) for rank in range(n, 0, -1)]
    assert median_interval(values) == (low, high)


@pytest.mark.parametrize("n", range(MIN_INTERVAL))
def test_fewer_than_six_values_have_no_interval(n: int) -> None:
    assert median_interval([1.0] * n) is None


def coverage(n: int, low: int, high: int) -> Fraction:
    """Chance that the true median lies between two order statistics of n values.

    It does when at least `low` and fewer than `high` values fall below it; Binomial(n, 1/2).
    """
    return Fraction(sum(comb(n, below) for below in range(low, high)), 2**n)


@pytest.mark.parametrize("n", range(6, 61))
def test_the_interval_covers_95_percent_and_a_narrower_one_does_not(n: int) -> None:
    found = median_interval([float(rank) for rank in range(1, n + 1)])
    assert found is not None
    low, high = (int(rank) for rank in found)
    assert low + high == n + 1, "symmetric in rank"
    assert coverage(n, low, high) >= Fraction(95, 100)
    assert coverage(n, low + 1, high - 1) < Fraction(95, 100)


def test_coverage_of_the_studys_ten_targets() -> None:
    assert float(coverage(10, 2, 9)) == pytest.approx(0.978515625)
    assert float(coverage(6, 1, 6)) == pytest.approx(0.96875)


@given(st.lists(st.floats(-10, 10), min_size=6, max_size=30))
def test_the_interval_holds_the_median_and_does_not_depend_on_order(values: list[float]) -> None:
    found = median_interval(values)
    assert found is not None
    assert found[0] <= quantile(values, 0.5) <= found[1]
    assert found == median_interval(values[::-1])
    assert set(found) <= set(values)


def test_summary_of_ten_values() -> None:
    assert summarise([0.1 * n for n in range(10)]) == pytest.approx(
        {"median": 0.45, "q1": 0.225, "q3": 0.675, "ci_low": 0.1, "ci_high": 0.8, "n": 10}
    )


def test_summary_of_few_and_of_no_values() -> None:
    assert summarise([2.0, 4.0]) == {
        "median": 3.0,
        "q1": 2.5,
        "q3": 3.5,
        "ci_low": None,
        "ci_high": None,
        "n": 2,
    }
    nothing = dict.fromkeys(("median", "q1", "q3", "ci_low", "ci_high"))
    assert summarise([]) == nothing | {"n": 0}
