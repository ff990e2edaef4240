"""Samples with seeds of their own, from a random model: the same whatever the batch."""

# ruff: noqa: F401, F811  the fixture `tokenizer`

from typing import Any

import pytest

from integration.test_likelihood import made, rows, tokenizer
from unlearning_grid.models.sampling import Completion, generate

pytestmark = [pytest.mark.usefixtures("one_thread")]

PROMPTS = rows(7, 24, 1, 30)
SEEDS = list(range(500, 524))


@pytest.fixture(scope="module")
def model() -> Any:
    return made()


def sampled(model: Any, tokenizer: Any, **changes: Any) -> list[Completion]:
    settings: dict[str, Any] = {
        "max_new_tokens": 16,
        "temperature": 1.0,
        "top_p": 0.98,
        "batch_size": 64,
        "seeds": SEEDS,
    }
    groups = generate(model, tokenizer, PROMPTS, **settings | changes)
    return [one for (one,) in groups]


def test_samples_are_the_same_in_every_batch_and_other_seeds_give_others(
    model: Any, tokenizer: Any
) -> None:
    whole = sampled(model, tokenizer)
    for size in (1, 5, 24):
        assert sampled(model, tokenizer, batch_size=size) == whole
    others = sampled(model, tokenizer, seeds=[seed + 1000 for seed in SEEDS])
    assert sum(a != b for a, b in zip(whole, others, strict=True)) > 20


def test_each_batch_is_told_when_it_is_done(model: Any, tokenizer: Any) -> None:
    told: dict[int, Completion] = {}
    sizes: list[int] = []

    def done(places: list[int], groups: list[list[Completion]]) -> None:
        sizes.append(len(places))
        told.update(zip(places, (one for (one,) in groups), strict=True))

    whole = sampled(model, tokenizer, batch_size=10, done=done)
    assert sizes == [10, 10, 4]
    assert [told[place] for place in range(24)] == whole


@pytest.mark.parametrize(
    "changes", [{"temperature": 0.0}, {"num_samples": 2}, {"seeds": [1]}], ids=str
)
def test_seeds_that_do_not_fit_are_refused(
    model: Any, tokenizer: Any, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="seeds: one per prompt"):
        sampled(model, tokenizer, **changes)
