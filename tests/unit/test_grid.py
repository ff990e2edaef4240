"""The grid: which cells, in which order, and what follows from them."""

from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from support import config
from unlearning_grid.grid import (
    Cell,
    Evaluation,
    base_policy,
    evaluations,
    expand,
    first_epoch_rollouts,
    matches,
    parse_policy,
    split_sizes,
    warmup_policy,
    warmups,
)

AXES = {
    "sizes": ["0.5b", "7b"],
    "targets": ["bruce-lee", "karl-marx", "confucius"],
    "inits": ["cold", "warm"],
    "rewards": ["r0-lex", "r2-rubric"],
    "seeds": [1234, 7],
}
SPLIT = {
    "max_rows": 300,
    "audit_fraction": 0.2,
    "sft_train_fraction": 0.1,
    "sft_test_fraction": 0.05,
}


def grid(**changes: Any) -> dict[str, Any]:
    return {**AXES, "exclude": [], **changes}


def test_every_combination_is_a_cell_once_with_the_last_axis_fastest() -> None:
    cells = expand(grid())
    assert len(cells) == 2 * 3 * 2 * 2 * 2 == len(set(cells))
    assert cells[0] == Cell("0.5b", "bruce-lee", "cold", "r0-lex", 1234)
    assert cells[1] == Cell("0.5b", "bruce-lee", "cold", "r0-lex", 7)
    assert cells[2] == Cell("0.5b", "bruce-lee", "cold", "r2-rubric", 1234)
    assert cells[-1] == Cell("7b", "confucius", "warm", "r2-rubric", 7)
    assert cells == [Cell(*values) for values in product(*(AXES[axis] for axis in AXES))]


def test_the_papers_grid_has_320_cells_40_warm_ups_and_400_evaluations() -> None:
    cells = expand(config("config")["grid"])
    assert (len(cells), len(warmups(cells)), len(evaluations(cells))) == (320, 40, 400)


def test_a_cell_knows_its_path_and_where_it_starts() -> None:
    cold = Cell("0.5b", "bruce-lee", "cold", "r0-lex", 1234)
    warm = Cell("0.5b", "bruce-lee", "warm", "r0-lex", 1234)
    assert cold.policy == "grpo/0.5b/bruce-lee/cold/r0-lex/s1234"
    assert warm.policy == "grpo/0.5b/bruce-lee/warm/r0-lex/s1234"
    assert cold.warmup is None
    assert warm.warmup == "warmup/0.5b/bruce-lee/s1234" == warmup_policy("0.5b", "bruce-lee", 1234)


def test_an_exclusion_needs_all_its_values() -> None:
    cell = Cell("7b", "bruce-lee", "cold", "r0-lex", 7)
    assert matches(cell, {"size": "7b"})
    assert matches(cell, {"size": "7b", "init": "cold", "seed": 7})
    assert not matches(cell, {"size": "7b", "init": "warm"})
    assert not matches(cell, {"seed": "7"})


def test_exclusions_add_up_and_keep_the_order() -> None:
    everything = expand(grid())
    rules = [{"size": "7b", "init": "cold"}, {"reward": "r2-rubric", "seed": 7}]
    left = expand(grid(exclude=rules))
    # 24 cells of 7b, half of them cold; of the other 36 a quarter
    assert len(left) == 48 - 12 - 9
    assert left == [c for c in everything if not any(matches(c, rule) for rule in rules)]


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "size": st.sampled_from(["0.5b", "7b", "70b"]),
                "target": st.sampled_from(AXES["targets"]),
                "init": st.sampled_from(["cold", "warm"]),
                "reward": st.sampled_from(["r0-lex", "r2-rubric"]),
                "seed": st.sampled_from([1234, 7, 8]),
            },
        ).filter(bool),
        max_size=4,
    )
)
def test_exclusions_leave_an_ordered_part_whatever_their_order(rules: list[dict[str, Any]]) -> None:
    everything = expand(grid())
    left = expand(grid(exclude=rules))
    assert left == expand(grid(exclude=rules[::-1]))
    assert [cell for cell in everything if cell in set(left)] == left
    assert all(any(matches(c, r) for r in rules) for c in set(everything) - set(left))


def test_a_new_value_of_an_axis_keeps_every_other_cell() -> None:
    before = expand(grid())
    for axis, value in (("seeds", 8), ("targets", "tony-blair"), ("rewards", "r4-refusal")):
        after = expand(grid(**{axis: [*AXES[axis], value]}))
        assert set(before) < set(after)
        assert [cell for cell in after if cell in set(before)] == before


def test_warm_ups_are_shared_by_rewards_and_needed_by_warm_cells_only() -> None:
    found = warmups(expand(grid()))
    assert len(found) == 2 * 3 * 2 == len(set(found))
    assert found[:2] == ["warmup/0.5b/bruce-lee/s1234", "warmup/0.5b/bruce-lee/s7"]
    assert warmups(expand(grid(inits=["cold"]))) == []
    only = expand(grid(exclude=[{"init": "warm", "target": "confucius"}]))
    assert not any("confucius" in policy for policy in warmups(only))


def test_evaluations_are_bases_then_warm_ups_then_cells_each_once() -> None:
    cells = expand(grid())
    found = evaluations(cells)
    assert len(found) == len(set(found)) == 6 + 12 + 48
    kinds = [item.policy.partition("/")[0] for item in found]
    assert kinds == ["base"] * 6 + ["warmup"] * 12 + ["grpo"] * 48
    assert found[0] == Evaluation("base/0.5b", "bruce-lee")
    assert [item.policy for item in found[18:]] == [cell.policy for cell in cells]
    for item in found[6:]:
        assert parse_policy(item.policy)["target"] == item.target


def test_a_base_model_is_evaluated_only_where_a_cell_is() -> None:
    cells = expand(grid(exclude=[{"size": "7b", "target": "confucius"}]))
    bases = [item for item in evaluations(cells) if item.policy == "base/7b"]
    assert [item.target for item in bases] == ["bruce-lee", "karl-marx"]


words = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,8}", fullmatch=True)


@given(words, words, st.sampled_from(["cold", "warm"]), words, st.integers(0, 10**6))
def test_policy_ids_can_be_read_back(
    size: str, target: str, init: str, reward: str, seed: int
) -> None:
    cell = Cell(size, target, init, reward, seed)
    assert parse_policy(cell.policy) == {"kind": "grpo", **vars(cell)}
    assert parse_policy(warmup_policy(size, target, seed)) == {
        "kind": "warmup",
        "size": size,
        "target": target,
        "seed": seed,
    }
    assert parse_policy(base_policy(size)) == {"kind": "base", "size": size}


@pytest.mark.parametrize(
    "policy",
    [
        "",
        "base",
        "base/7b/more",
        "warmup/7b/bruce-lee",
        "warmup/7b/bruce-lee/s1/more",
        "grpo/7b/bruce-lee/cold/r0-lex",
        "grpo/7b/bruce-lee/cold/r0-lex/sx",
        "grpo/7b/bruce-lee/cold/r0-lex/s",
        "sft/7b/bruce-lee/s1",
        "results/base/7b",
        # read without complaint, these would name a folder that is not there
        "base/",
        "warmup/7b/bruce-lee/1234",
        "warmup/7b/bruce-lee/s1_0",
        "warmup/7b/bruce-lee/s-1",
    ],
)
def test_what_is_no_policy_id_is_refused(policy: str) -> None:
    with pytest.raises(ValueError):
        parse_policy(policy)


# Sizes.


def test_300_rows_split_as_in_the_paper() -> None:
    assert split_sizes(300, SPLIT) == {
        "heldout": 60,
        "grpo_train": 203,
        "sft_train": 24,
        "sft_test": 13,
    }


@pytest.mark.parametrize("rows", [300, 301, 5000])
def test_more_rows_than_the_cut_change_nothing(rows: int) -> None:
    assert split_sizes(rows, SPLIT) == split_sizes(300, SPLIT)
    assert sum(split_sizes(rows, {**SPLIT, "max_rows": None}).values()) == rows


share = st.floats(0.01, 0.6)


@given(st.integers(1, 2000), share, share, share)
def test_every_row_is_in_one_part(rows: int, audit: float, train: float, test: float) -> None:
    assume(train + test < 0.99)
    settings = {
        "max_rows": None,
        "audit_fraction": audit,
        "sft_train_fraction": train,
        "sft_test_fraction": test,
    }
    sizes = split_sizes(rows, settings)
    assert sum(sizes.values()) == rows and min(sizes.values()) >= 0


def test_rollouts_of_the_first_epoch() -> None:
    grpo = {"batch_size": 64, "num_generations": 8}  # 8 prompts a rollout
    assert first_epoch_rollouts(203, grpo) == 25
    assert first_epoch_rollouts(200, grpo) == 25
    assert first_epoch_rollouts(199, grpo) == 24
    assert first_epoch_rollouts(7, grpo) == 0
    assert first_epoch_rollouts(203, {"batch_size": 8, "num_generations": 8}) == 203
