"""Scores of membership inference and their separation: values by hand."""

import math
import zlib

import pytest

from odd_texts import each_odd
from unlearning_grid.rwku.membership import PERCENTS, scores, separation

TEXT = "Trier is old. " * 20
SIZE = len(zlib.compress(TEXT.encode()))
LOGPROBS = [-1.0, -5.0, -2.0, -4.0, -3.0, -0.5, -0.5, -1.0, -2.0, -1.0]
MEANS = [-2.0] * 10
VARIANCES = [4.0] * 10
LOWEST = [-5.0, -4.0, -3.0, -2.0, -2.0, -1.0, -1.0, -1.0, -0.5, -0.5]
KINDS = ("min_k", "min_k_plus_plus")
NAMES = {"loss", "zlib"} | {f"{kind}_{percent}" for kind in KINDS for percent in PERCENTS}


def test_all_scores() -> None:
    found = scores(LOGPROBS, MEANS, VARIANCES, TEXT)
    assert set(found) == NAMES
    assert found["loss"] == pytest.approx(2.0)
    assert found["zlib"] == pytest.approx(-2.0 / SIZE)
    for number, percent in enumerate(PERCENTS, start=1):
        lowest = sum(LOWEST[:number]) / number
        assert found[f"min_k_{percent}"] == pytest.approx(lowest), percent
        # one mean and one variance for all: the same order
        assert found[f"min_k_plus_plus_{percent}"] == pytest.approx((lowest + 2) / 2), percent


def test_the_order_of_min_k_plus_plus_is_its_own() -> None:
    found = scores([-9.0, -1.0], [-9.0, -0.5], [1.0, 0.25], TEXT)
    assert found["min_k_50"] == -9.0
    assert found["min_k_plus_plus_50"] == -1.0
    assert found["min_k_plus_plus_100"] == -0.5


@pytest.mark.parametrize(
    ("tokens", "present"),
    [(1, {100}), (2, set(range(50, 101, 10))), (3, set(range(40, 101, 10))), (10, set(PERCENTS))],
)
def test_a_share_of_less_than_one_token_is_missing(tokens: int, present: set[int]) -> None:
    found = scores([-1.0] * tokens, [-1.0] * tokens, [1.0] * tokens, TEXT)
    for kind in KINDS:
        assert {p for p in PERCENTS if found[f"{kind}_{p}"] is not None} == present


def test_the_number_of_tokens_is_cut_as_in_rwku() -> None:
    """int(90 * .7) is 62, for want of binary sevenths; 63 in whole numbers."""
    found = scores([-float(n) for n in range(90)], [0.0] * 90, [1.0] * 90, TEXT)
    assert found["min_k_70"] == pytest.approx(-sum(range(28, 90)) / 62)


def test_a_text_without_scored_tokens() -> None:
    assert scores([], [], [], "") == dict.fromkeys(NAMES)


def test_a_place_without_variance_stands_last() -> None:
    found = scores([-1.0, -5.0, -3.0, 0.0], [-1.0, -1.0, -1.0, 0.0], [1.0, 0.0, 1.0, -1e-12], TEXT)
    assert found["loss"] == 2.25
    assert found["min_k_plus_plus_20"] is None  # no token
    assert found["min_k_plus_plus_30"] == -2.0
    assert found["min_k_plus_plus_50"] == -1.0
    assert found["min_k_plus_plus_80"] is None  # would need such a place
    assert found["min_k_plus_plus_100"] is None
    assert found["min_k_100"] == -2.25


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [-math.inf, math.nan])
def test_no_value_is_infinite_or_nan(bad: float) -> None:
    found = scores([bad, *LOGPROBS[1:]], [bad, *MEANS[1:]], VARIANCES, TEXT)
    assert all(value is None or math.isfinite(value) for value in found.values())
    assert found["loss"] is None and found["zlib"] is None and found["min_k_100"] is None
    assert found["min_k_plus_plus_10"] == -1.5


@pytest.mark.parametrize(
    ("mean", "variance"),
    [([-1.0], [1.0, 1.0]), ([-1.0, -1.0], [1.0]), ([[-1.0, -1.0]], [[1.0, 1.0]])],
)
def test_one_value_per_token(mean: list, variance: list) -> None:
    with pytest.raises(ValueError, match="one value per token"):
        scores([-1.0, -1.0], mean, variance, TEXT)


@each_odd
def test_odd_texts(output: str) -> None:
    found = scores([-1.5], [-1.0], [1.0], output)
    assert found["zlib"] == pytest.approx(-1.5 / len(zlib.compress(bytes(output, "utf-8"))))
    assert found["loss"] == 1.5


@pytest.mark.parametrize(
    ("forget", "retain", "area"),
    [
        ([3.0, 4.0], [1.0, 2.0], 1.0),
        ([1.0, 2.0], [3.0, 4.0], 0.0),
        ([1.0, 4.0], [2.0, 3.0], 0.5),
        ([1.0, 1.0], [1.0], 0.5),
        ([1.0, 2.0, 2.0], [2.0, 0.0], 4 / 6),  # 1 > 0, 2 > 0 twice, two ties
        ([-math.inf], [0.0], 0.0),
        ([], [1.0], None),
        ([1.0], [], None),
    ],
)
def test_separation(forget: list[float], retain: list[float], area: float | None) -> None:
    assert separation(forget, retain) == area


def test_a_missing_score_must_be_left_out() -> None:
    with pytest.raises(ValueError, match="not a number"):
        separation([1.0, math.nan], [1.0])
