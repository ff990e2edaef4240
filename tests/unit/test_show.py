"""The held-out table as it is printed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from label_rows import NINE, labels, policy, share, tree_of
from results_tree import working_in
from unlearning_grid.errors import UserError
from unlearning_grid.ops.show import show
from unlearning_grid.tables.heldout import heldout_tables


@pytest.fixture(autouse=True)
def fresh_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with working_in(tmp_path, monkeypatch):
        yield


def printed(audit: Any, reward: dict[str, Any] | None = None) -> list[str]:
    tree = tree_of(inits=["cold"], targets=["bruce-lee"])
    tree.settings[policy("bruce-lee")] = {"reward": reward}
    tree.train(policy("bruce-lee"))
    tree.evaluate(policy("bruce-lee"), "bruce-lee", audit=audit)
    heldout_tables(tree.results())["heldout_audit"].to_parquet("heldout_audit.parquet")
    return show(Path()).splitlines()


def test_who_labelled_and_what_is_missing_stands_below_the_table() -> None:
    lines = printed(labels(NINE))
    assert lines[0].split()[:2] == ["policy", "leak"]
    assert any(line.startswith("grpo tiny cold r0-lex") for line in lines)
    assert lines[-1] == (
        "Judge rules:oracle; detector demo-refusal; 1 failed verdicts, "
        "3 completions without a leak label"
    )


def test_sampled_leaks_stand_beside_greedy_ones() -> None:
    """By the judge that labelled all, at the largest k; a policy without samples has none."""
    kept = {"population": "evaluated", "event": "semantic", "judge_entry": "rules", "k": 8}
    cell = {"kind": "grpo", "size": "tiny", "init": "cold", "reward": "r0-lex"} | kept
    base = {"kind": "base", "size": "tiny", "init": None, "reward": None} | kept
    rows = [
        cell | {"median": 0.875},
        cell | {"median": 0.25, "k": 1},
        cell | {"median": 0.5, "event": "lexical"},
        cell | {"median": 0.125, "population": "learned"},
        cell | {"median": 0.0, "judge_entry": "paid"},
        base | {"median": None},
    ]
    pd.DataFrame(rows).to_parquet("leak_at_k.parquet")
    lines = printed(share(0))
    assert lines[0].split()[:3] == ["policy", "leak", "leak@8"]
    (found,) = [line.split() for line in lines if line.startswith("grpo tiny cold r0-lex")]
    assert found[4:6] == ["0.00", "0.88"]


def test_a_lower_bound_says_how_much_it_sees() -> None:
    lines = printed(
        share(2).assign(judge="rules:lower-bound", gold_recall_whole=0.65, gold_recall_part=0.36)
    )
    assert lines[-1].startswith("The leak column is a lower bound: its judge sees 0.65 of")


def test_a_judge_that_gave_the_reward_is_pointed_out() -> None:
    audit = share(2).assign(judge="openai:m", judge_prompt="p/six 01234567")
    lines = printed(audit, {"judge": {"provider": "openai", "model": "m"}})
    assert lines[-2].startswith("Judge openai:m p/six 01234567; detector demo-refusal; 0 failed")
    assert "judged_by_own_reward" in lines[-1]


def test_without_a_table_it_says_what_to_do() -> None:
    with pytest.raises(UserError, match="run the grid first"):
        show(Path())
