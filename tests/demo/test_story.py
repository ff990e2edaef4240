"""What `make demo` must show, and only what is robust. Run by `make test-demo`."""

from typing import Any

import pandas as pd
import pytest

from support import ROOT

pytestmark = pytest.mark.demo

TABLES = ROOT / "results" / "tables"


@pytest.fixture(scope="module")
def cells() -> Any:
    return pd.read_parquet(TABLES / "cells.parquet")


@pytest.fixture(scope="module")
def rates() -> Any:
    """One row per policy and target, one column per metric."""
    table = pd.read_parquet(TABLES / "heldout_audit_targets.parquet")
    keys = ["policy", "target"]
    facts = table.drop_duplicates(keys).set_index(keys)[["kind", "init", "reward", "status"]]
    return table.pivot(index=keys, columns="metric", values="value").join(facts).reset_index()


def test_statuses_are_complete(cells):
    assert len(cells) == 16
    assert set(cells["status"]) == {"learned", "no-learning"}
    assert cells["evaluated"].all()


def test_a_cold_r2_cell_has_nothing_to_learn_from(cells):
    stopped = cells[cells["status"] == "no-learning"]
    assert set(zip(stopped["init"], stopped["reward"], strict=True)) == {("cold", "r2-rubric")}
    assert (stopped["first_epoch_active_rate"] <= 0.05).all()


def test_the_base_model_leaks_and_every_learned_cell_leaks_less(rates):
    base = rates[rates["kind"] == "base"].set_index("target")["semantic_leakage"]
    assert (base >= 0.8).all()
    learned = rates[rates["status"] == "learned"]
    assert len(learned) >= 12
    assert (learned["semantic_leakage"] < learned["target"].map(base)).all()


def test_r4_ends_in_refusal(rates):
    assert (rates[rates["reward"] == "r4-refusal"]["refusal"] >= 0.9).all()


def test_warm_r2_is_broad_without_leak_and_warm_r4_is_not(rates):
    warm = rates[rates["init"] == "warm"].groupby("reward")["broad_no_leak"]
    assert warm.min()["r2-rubric"] > warm.max()["r4-refusal"]


def test_the_table_has_every_policy(rates):
    assert rates["kind"].value_counts().to_dict() == {"grpo": 16, "warmup": 2, "base": 2}
