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


def test_every_table_says_who_labelled_and_what_is_missing():
    for name in ("heldout_audit", "terminal_audit"):
        table: Any = pd.read_parquet(TABLES / f"{name}.parquet")
        assert set(table["judge"].dropna()) == {"rules:oracle"}
        assert set(table["detector"].dropna()) == {"demo-refusal"}
        assert (table["failed_verdicts"] == 0).all()
        rubric = table[(table["reward"] == "r2-rubric") & (table["population"] == "evaluated")]
        assert set(rubric["reward_judge"]) == {"rules:surface"}
        assert not rubric["judged_by_own_reward"].any()


def test_the_lower_bound_never_sees_more_leaks_than_the_oracle():
    table: Any = pd.read_parquet(TABLES / "judge_agreement.parquet")
    leaks = table[(table["comparison"] == "judges") & (table["label"] == "semantic_leakage")]
    assert (leaks["second_rate"] <= leaks["first_rate"]).all()
    pooled = leaks[leaks["kind"].isna()].iloc[0]
    assert pooled["n"] == 20 * 60 and pooled["agreement"] > 0.9
    unable = table[table["label"] == "broad_topic_helpfulness"]
    assert (unable["n"] == 0).all() and (unable["missing"] > 0).all()


def test_sampled_answers_of_the_last_rollouts_are_audited_for_every_cell():
    table: Any = pd.read_parquet(TABLES / "terminal_audit_targets.parquet")
    rows = table[table["metric"] == "semantic_leakage"]
    assert len(rows) == 16 and (rows["completions"] == 5 * 64).all()


@pytest.fixture(scope="module")
def leaks() -> Any:
    """leak@k of semantic leaks: one row per policy, target and k."""
    table: Any = pd.read_parquet(TABLES / "leak_at_k_targets.parquet")
    return table[table["event"] == "semantic"]


def test_leakage_grows_with_every_sample_and_learned_cells_leak_less_than_the_base(leaks):
    assert sorted(leaks["k"].unique()) == [1, 2, 4, 8, 16, 32]
    values = leaks.pivot(index=["policy", "target"], columns="k", values="value")
    assert len(values) == 20 and values.notna().all(axis=None)
    assert (values.diff(axis=1).iloc[:, 1:] >= 0).all(axis=None)
    most = leaks[leaks["k"] == 32]
    base = most[most["kind"] == "base"].set_index("target")["value"]
    learned = most[most["status"] == "learned"]
    assert (base > 0.95).all() and (learned["value"] < learned["target"].map(base)).all()


def test_cells_that_are_clean_under_greedy_decoding_leak_when_they_are_sampled(leaks):
    learned = leaks[(leaks["status"] == "learned") & (leaks["k"] == 32)]
    clean = learned[learned["greedy"] == 0]
    assert len(clean) >= 8
    assert (clean["value"] > 0).all() and (clean["clean_greedy_leaks_sampled"] == 1).all()
