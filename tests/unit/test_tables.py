"""Values of the held-out tables, worked out by hand, over a small tree of results."""

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from label_rows import NA, NINE, F, T, labels, missing, policy, row, share, tree_of
from results_tree import NO_LEARNING, working_in
from unlearning_grid.tables.heldout import METRICS, heldout_tables, rates

# metric -> (completions that have it, completions for which it is known)
EXPECTED = {
    "broad_no_semantic": (3, 6),
    "broad_no_leak": (2, 6),
    "useful_unlearning_rate": (2, 5),
    "explicit_refusal": (1, 7),
    "topic_avoidance": (1, 7),
    "lexical_leakage": (1, 8),
    "semantic_leakage": (1, 6),
    "prompt_helpfulness": (5, 8),
    "broad_topic_helpfulness": (5, 8),
    "refusal": (3, 8),
    "language_drift": (0, 8),
    "detector_refusal": (2, 8),
    "degenerate": (1, 9),
    "class_leak": (1, 8),
    "class_refusal": (3, 8),
    "class_broad": (3, 8),
    "class_offtopic": (1, 8),
    "class_misattributed": (0, 8),
    "class_garbled": (0, 8),
}


@pytest.fixture(autouse=True)
def fresh_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with working_in(tmp_path, monkeypatch):
        yield


# One evaluation.


@pytest.mark.parametrize("metric", METRICS)
def test_rates_of_nine_completions(metric: str) -> None:
    found = {entry["metric"]: entry for entry in rates(labels(NINE))}
    having, known = EXPECTED[metric]
    assert found[metric]["value"] == pytest.approx(having / known)
    assert found[metric]["missing"] == 9 - known
    assert found[metric]["completions"] == 9


def test_every_metric_is_checked_here() -> None:
    assert set(METRICS) == set(EXPECTED)


def test_a_joint_endpoint_with_a_missing_part_is_missing_even_if_another_part_is_false() -> None:
    not_broad = [(F, NA, F, F, F, F, "offtopic", 0.1)]
    found = {entry["metric"]: entry for entry in rates(labels(not_broad))}
    for metric in ("broad_no_semantic", "broad_no_leak", "useful_unlearning_rate"):
        assert found[metric]["value"] is None and found[metric]["missing"] == 1
    assert found["broad_topic_helpfulness"]["value"] == 0.0


@pytest.mark.parametrize(("probability", "explicit"), [(0.5, 1.0), (0.496, 1.0), (0.495, 0.0)])
def test_half_a_probability_is_a_detected_refusal(probability: float, explicit: float) -> None:
    found = {
        entry["metric"]: entry["value"]
        for entry in rates(labels([(F, F, F, F, T, F, "refusal", probability)]))
    }
    assert found["explicit_refusal"] == explicit
    assert found["topic_avoidance"] == 1.0 - explicit
    assert found["explicit_refusal"] + found["topic_avoidance"] == found["refusal"]


def test_without_labels_every_rate_is_missing() -> None:
    for entry in rates(None):
        assert entry["value"] is None and entry["completions"] == 0


# Over targets.


def test_medians_over_two_targets() -> None:
    tree = tree_of()
    for target, leaks in (("bruce-lee", 2), ("karl-marx", 5)):
        tree.train(policy(target))
        tree.evaluate(policy(target), target, audit=share(leaks))
    table = heldout_tables(tree.results())["heldout_audit"]
    cold = row(table, init="cold", population="learned", metric="semantic_leakage")
    # quartiles of (0.2, 0.5) at positions 0.25 and 0.75
    assert cold[["median", "q1", "q3"]].tolist() == pytest.approx([0.35, 0.275, 0.425])
    assert cold["n"] == 2 and missing(cold["ci_low"]) and missing(cold["ci_high"])
    assert cold["note"] == "fewer than 6 targets: no interval"
    assert cold["cells_learned"] == 2 and cold["cells_not_run"] == 0
    warm = row(table, init="warm", reward="r0-lex", population="learned", metric="refusal")
    assert warm["n"] == 0 and missing(warm["median"])
    assert warm["cells_not_run"] == 2 and warm["cells_learned"] == 0


def test_six_targets_have_an_interval_from_the_least_to_the_greatest() -> None:
    names = ["bruce-lee", "karl-marx", "confucius", "tom-clancy", "tony-blair", "marlon-brando"]
    tree = tree_of(targets=names, inits=["cold"])
    for leaks, target in enumerate(names):
        tree.train(policy(target))
        tree.evaluate(policy(target), target, audit=share(leaks))
    table = heldout_tables(tree.results())["heldout_audit"]
    found = row(table, kind="grpo", population="learned", metric="semantic_leakage")
    assert found[["median", "ci_low", "ci_high"]].tolist() == pytest.approx([0.25, 0.0, 0.5])
    assert found["n"] == 6 and missing(found["note"])


def test_no_learning_counts_among_the_evaluated_only() -> None:
    tree = tree_of(inits=["cold"])
    tree.train(policy("bruce-lee"))
    tree.train(policy("karl-marx"), NO_LEARNING)
    tree.evaluate(policy("bruce-lee"), "bruce-lee", audit=share(2))
    tree.evaluate(policy("karl-marx"), "karl-marx", audit=share(8))
    table = heldout_tables(tree.results())["heldout_audit"]
    facts = {"kind": "grpo", "metric": "semantic_leakage"}
    learned = row(table, population="learned", **facts)
    evaluated = row(table, population="evaluated", **facts)
    assert (learned["median"], learned["n"]) == (pytest.approx(0.2), 1)
    assert (evaluated["median"], evaluated["n"]) == (pytest.approx(0.5), 2)
    for found in (learned, evaluated):
        assert (found["cells_learned"], found["cells_no_learning"]) == (1, 1)


def test_missing_labels_are_counted_and_left_out_of_the_rate() -> None:
    tree = tree_of(inits=["cold"])
    for target, audit in (("bruce-lee", labels(NINE)), ("karl-marx", share(4))):
        tree.train(policy(target))
        tree.evaluate(policy(target), target, audit=audit)
    table = heldout_tables(tree.results())["heldout_audit"]
    found = row(table, kind="grpo", population="learned", metric="semantic_leakage")
    assert found["median"] == pytest.approx((1 / 6 + 0.4) / 2)
    assert (found["missing"], found["n"]) == (3, 2)


def test_missing_labels_of_cells_outside_a_population_are_not_its_own() -> None:
    tree = tree_of(inits=["cold"])
    tree.train(policy("bruce-lee"))
    tree.train(policy("karl-marx"), NO_LEARNING)
    tree.evaluate(policy("bruce-lee"), "bruce-lee", audit=share(2))
    tree.evaluate(policy("karl-marx"), "karl-marx", audit=labels(NINE))
    table = heldout_tables(tree.results())["heldout_audit"]
    facts = {"kind": "grpo", "metric": "semantic_leakage"}
    assert row(table, population="evaluated", **facts)["missing"] == 3
    assert row(table, population="learned", **facts)["missing"] == 0


def test_seeds_are_averaged_within_a_target_first() -> None:
    tree = tree_of(inits=["cold"], seeds=[0, 1])
    made = {("bruce-lee", 0): 2, ("bruce-lee", 1): 6, ("karl-marx", 0): 8}
    for (target, seed), leaks in made.items():
        tree.train(policy(target, seed=seed))
        tree.evaluate(policy(target, seed=seed), target, audit=share(leaks))
    with pytest.raises(RuntimeError):
        tree.train(policy("karl-marx", seed=1), RuntimeError("no memory"))
    table = heldout_tables(tree.results())["heldout_audit"]
    found = row(table, kind="grpo", population="learned", metric="semantic_leakage")
    # (0.2 + 0.6) / 2 = 0.4 and 0.8, not the median of 0.2, 0.6 and 0.8
    assert found["median"] == pytest.approx(0.6) and found["n"] == 2
    assert (found["cells_learned"], found["cells_failed"]) == (3, 1)


def test_base_models_and_warm_ups_have_rows_of_their_own() -> None:
    tree = tree_of()
    for target in ("bruce-lee", "karl-marx"):
        tree.evaluate("base/tiny", target, audit=share(9))
    tree.train("warmup/tiny/bruce-lee/s0", {"status": "finished"})
    tree.evaluate("warmup/tiny/bruce-lee/s0", "bruce-lee", audit=share(6))
    frames = heldout_tables(tree.results())
    for population in ("learned", "evaluated"):
        facts = {"population": population, "metric": "semantic_leakage"}
        base = row(frames["heldout_audit"], kind="base", **facts)
        warm = row(frames["heldout_audit"], kind="warmup", **facts)
        assert (base["median"], base["n"]) == (pytest.approx(0.9), 2)
        assert (warm["median"], warm["n"]) == (pytest.approx(0.6), 1)
        assert missing(base["cells_learned"]) and missing(base["init"])
    one = frames["heldout_audit_targets"]
    found = row(one, policy="warmup/tiny/karl-marx/s0", metric="semantic_leakage")
    assert missing(found["value"]) and found["completions"] == 0


def test_rows_stand_in_the_same_order_whatever_the_order_of_the_grid() -> None:
    axes = {
        "targets": ["karl-marx", "bruce-lee"],
        "inits": ["warm", "cold"],
        "rewards": ["r2-rubric", "r0-lex"],
        "seeds": [1, 0],
    }
    one = tree_of(**axes)
    other = tree_of(**{name: values[::-1] for name, values in axes.items()})
    one.train(policy("bruce-lee", seed=1))
    one.evaluate(policy("bruce-lee", seed=1), "bruce-lee", audit=share(3))
    first, second = heldout_tables(one.results()), heldout_tables(other.results())
    for name in first:
        pd.testing.assert_frame_equal(first[name], second[name])
    names = ["kind", "init", "reward"]
    table = heldout_tables(one.results())["heldout_audit"]
    groups = table[names].drop_duplicates().astype(object).where(table[names].notna(), None)
    assert [tuple(values) for values in groups.itertuples(index=False)] == [
        ("base", None, None),
        ("warmup", None, None),
        ("grpo", "cold", "r0-lex"),
        ("grpo", "cold", "r2-rubric"),
        ("grpo", "warm", "r0-lex"),
        ("grpo", "warm", "r2-rubric"),
    ]


def test_every_group_has_every_metric_in_both_populations() -> None:
    tree = tree_of()
    table = heldout_tables(tree.results())["heldout_audit"]
    groups = 4  # base, warm-up, cold and warm cells
    assert len(table) == groups * 2 * len(METRICS)
    assert table["median"].isna().all() and (table["n"] == 0).all()
    directions = table.drop_duplicates("metric").set_index("metric")["direction"]
    assert directions["semantic_leakage"] == "lower"
    assert directions["broad_no_semantic"] == "higher"
    assert directions["refusal"] is None or math.isnan(directions["refusal"])
