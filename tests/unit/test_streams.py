"""Samples from streams of their own: the right distribution, whatever stands beside a row."""

import math
from typing import Any

import pytest
import torch

from unlearning_grid.models.streams import OwnStreams

LOGITS = [2.0, 1.0, 0.0, float("-inf"), -1.0]
ROWS = 20_000


def tokens(scores: Any, seeds: range | list[int], **settings: Any) -> list[int]:
    """The sampled token of each row; all its weight is on it."""
    streams = OwnStreams(list(seeds), **({"temperature": 1.0} | settings))
    out = streams(torch.zeros(len(scores), 1, dtype=torch.long), scores)
    assert out.shape == scores.shape and out.dtype == scores.dtype
    assert (out.isfinite().sum(-1) == 1).all()
    return out.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # softmax of 2, 1, 0, -1 over four tokens
        ({}, [0.6439, 0.2369, 0.0871, 0.0, 0.0321]),
        # of 1, 0.5, 0, -0.5
        ({"temperature": 2.0}, [0.4551, 0.2760, 0.1674, 0.0, 0.1015]),
        # the first two hold 0.8808 of the mass, the first alone 0.6439
        ({"top_p": 0.8}, [0.7311, 0.2689, 0.0, 0.0, 0.0]),
        ({"top_p": 0.6}, [1.0, 0.0, 0.0, 0.0, 0.0]),
    ],
    ids=str,
)
def test_tokens_have_their_probabilities(settings: Any, expected: list[float]) -> None:
    drawn = tokens(torch.tensor([LOGITS] * ROWS), range(ROWS), **settings)
    for token, probability in enumerate(expected):
        error = math.sqrt(probability * (1 - probability) / ROWS)
        assert abs(drawn.count(token) / ROWS - probability) <= 4 * error + 5e-5


def test_one_stream_has_them_too_over_its_tokens() -> None:
    streams = OwnStreams([7], 1.0)
    ids, scores = torch.zeros(1, 1, dtype=torch.long), torch.tensor([LOGITS])
    drawn = [int(streams(ids, scores).argmax()) for _ in range(4000)]
    assert abs(drawn.count(0) / 4000 - 0.6439) < 4 * math.sqrt(0.6439 * 0.3561 / 4000)


def test_a_row_depends_on_its_own_seed_alone() -> None:
    torch.manual_seed(0)
    scores = torch.randn(64, 300)
    together = tokens(scores, range(64))
    order = torch.randperm(64).tolist()
    shuffled = tokens(scores[order], [int(seed) for seed in order])
    alone = [tokens(scores[i : i + 1], [i])[0] for i in range(64)]
    assert together == alone == [shuffled[order.index(i)] for i in range(64)]
    assert together != tokens(scores, range(1, 65))


def test_the_state_outside_does_not_matter_and_stays() -> None:
    scores = torch.randn(8, 50)
    torch.manual_seed(1)
    first = tokens(scores, range(8))
    state = torch.random.get_rng_state()
    assert tokens(scores, range(8)) == first
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_token_without_probability_is_never_drawn() -> None:
    """Not even by a draw of exactly 0 at the first token, or one close to 1 at the last."""

    class Draws:
        def __init__(self, value: float) -> None:
            self.value = value

        def random(self) -> float:
            return self.value

    nothing = float("-inf")
    for value, expected in ((0.0, 1), (1.0 - 2**-53, 2)):
        streams = OwnStreams([0], 1.0)
        streams.generators = [Draws(value)]  # type: ignore[list-item]
        scores = torch.tensor([[nothing, 0.0, 0.0, nothing]])
        assert int(streams(torch.zeros(1, 1, dtype=torch.long), scores).argmax()) == expected
