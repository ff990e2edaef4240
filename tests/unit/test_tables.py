"""Values of the held-out and RWKU tables, worked out by hand, over a small tree of results."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pytest

from label_rows import NA, NINE, F, T, labels, missing, policy, row, share, tree_of
from results_tree import NO_LEARNING, working_in
from unlearning_grid.tables.heldout import METRICS, heldout_tables, rates
from unlearning_grid.tables.rwku import core_scores, rwku_tables

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


FORGET = [(1, 1.0), (1, 0.0), (2, 0.2), (3, 0.8), (3, 0.4), (3, 0.6)]
NEIGHBOR = [(1, 0.5), (2, 1.0), (2, 0.0), (2, 0.2)]


def scores(
    forget: Sequence[tuple[int, float]] = FORGET,
    neighbor: Sequence[tuple[int, float]] = NEIGHBOR,
) -> pd.DataFrame:
    """A scores table as evaluate_rwku writes it, from (level, recall)."""
    rows = [("rwku-forget", *pair) for pair in forget]
    rows += [("rwku-neighbor", *pair) for pair in neighbor]
    return pd.DataFrame(rows, columns=["set", "level", "rouge_l_recall"])


def test_scores_are_means_of_levels_and_beside_them_of_rows() -> None:
    found = {entry["metric"]: entry["value"] for entry in core_scores(scores())}
    assert found == pytest.approx(
        {
            "forget": (0.5 + 0.2 + 0.6) / 3,
            "forget_rows": 0.5,
            "forget_level1": 0.5,
            "forget_level2": 0.2,
            "forget_level3": 0.6,
            "neighbor": (0.5 + 0.4) / 2,
            "neighbor_rows": 0.425,
            "neighbor_level1": 0.5,
            "neighbor_level2": 0.4,
        }
    )


def test_a_missing_level_makes_the_mean_of_levels_missing() -> None:
    found = {e["metric"]: e for e in core_scores(scores(forget=[(1, 0.5), (3, 0.7)]))}
    assert found["forget"]["value"] is None and found["forget"]["missing"] == 1
    assert found["forget_level2"]["value"] is None
    assert found["forget_level1"]["value"] == 0.5
    assert found["forget_rows"]["value"] == pytest.approx(0.6)
    assert found["neighbor"]["value"] == pytest.approx(0.45)


def test_without_scores_everything_is_missing() -> None:
    # An absent evaluation is counted by the cells' statuses, not as missing scores.
    assert all(e["value"] is None and e["missing"] == 0 for e in core_scores(None))


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


def test_differences_are_against_the_base_model_on_the_same_target() -> None:
    tree = tree_of(inits=["cold"])
    bases = {"bruce-lee": 0.9, "karl-marx": 0.5}
    trained = {"bruce-lee": 0.3, "karl-marx": 0.4}
    for target in bases:
        level = [(1, bases[target]), (2, bases[target]), (3, bases[target])]
        tree.evaluate("base/tiny", target, rwku=scores(forget=level))
        after = [(1, trained[target]), (2, trained[target]), (3, trained[target])]
        tree.train(policy(target))
        tree.evaluate(policy(target), target, rwku=scores(forget=after, neighbor=[(1, 0.25)]))
    frames = rwku_tables(tree.results())
    one = frames["rwku_core_targets"]
    for target, change in (("bruce-lee", -0.6), ("karl-marx", -0.1)):
        found = row(one, policy=policy(target), metric="forget_delta")
        assert found["value"] == pytest.approx(change)
        assert missing(row(one, policy=policy(target), metric="neighbor_delta")["value"])
        level = row(one, policy=policy(target), metric="neighbor_level1_delta")
        assert level["value"] == pytest.approx(0.25 - 0.5)
    assert one[one["kind"] == "base"]["metric"].str.endswith("_delta").sum() == 0
    table = frames["rwku_core"]
    delta = row(table, kind="grpo", population="learned", metric="forget_delta")
    assert (delta["median"], delta["n"]) == (pytest.approx(-0.35), 2)
    whole = row(table, kind="grpo", population="learned", metric="neighbor")
    assert (whole["n"], whole["missing"]) == (0, 2) and missing(whole["median"])


def test_without_the_base_model_there_is_no_difference() -> None:
    tree = tree_of(inits=["cold"])
    tree.train(policy("bruce-lee"))
    tree.evaluate(policy("bruce-lee"), "bruce-lee", rwku=scores())
    one = rwku_tables(tree.results())["rwku_core_targets"]
    found = row(one, policy=policy("bruce-lee"), metric="forget_delta")
    assert missing(found["value"]) and found["missing"] == 1
    assert row(one, policy=policy("bruce-lee"), metric="forget")["value"] == pytest.approx(1.3 / 3)


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
    one.evaluate(policy("bruce-lee", seed=1), "bruce-lee", audit=share(3), rwku=scores())
    for make in (heldout_tables, rwku_tables):
        first, second = make(one.results()), make(other.results())
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
