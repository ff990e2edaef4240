"""Values of the RWKU tables, worked out by hand, over a small tree of results."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from label_rows import missing, policy, row, tree_of
from results_tree import working_in
from unlearning_grid.tables.rwku_core import core_scores, rwku_core_tables
from unlearning_grid.tables.rwku_types import TYPES, rwku_types_tables, type_scores
from unlearning_grid.tables.rwku_utility import rwku_utility_tables, utility_scores

FORGET = [(1, 1.0), (1, 0.0), (2, 0.2), (3, 0.8), (3, 0.4), (3, 0.6)]
NEIGHBOR = [(1, 0.5), (2, 1.0), (2, 0.0), (2, 0.2)]
LOSSES = {"mia_forget": [2.0, 3.0], "mia_retain": [1.0, 2.0, 2.5]}
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def fresh_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with working_in(tmp_path, monkeypatch):
        yield


def entry(config: str, metric: str, convention: str, score: float | None, **more: Any) -> Any:
    state = "ok" if score is not None else "crash"
    facts = {"config": config, "type": None, "metric": metric, "convention": convention}
    return {**facts, "score": score, "state": state, **more}


def probes(name: str, pairs: Sequence[tuple[int, float | None]], *conventions: str) -> Rows:
    return [
        entry(f"{name}_level{level}", "rouge_l_recall", convention, score)
        for convention in conventions or ("corrected", "paper", "rwku")
        for level, score in pairs
    ]


def texts(losses: Mapping[str, Sequence[float]] = LOSSES) -> Rows:
    return [
        entry(config, "loss", convention, turn * loss)
        for convention, turn in (("corrected", 1), ("paper", 1), ("rwku", -1))
        for config, found in losses.items()
        for loss in found
    ]


def frames(**sets: Rows) -> dict[str, pd.DataFrame]:
    found = {
        "forget": probes("forget", FORGET),
        "neighbor": probes("neighbor", NEIGHBOR),
        "mia": texts(),
        **sets,
    }
    return {name: table(rows) for name, rows in found.items()}


def table(rows: Rows) -> pd.DataFrame:
    columns = ["config", "type", "metric", "convention", "score", "state"]
    return pd.DataFrame(rows, columns=columns).astype({"score": "Float64"})


def values(found: Iterator[dict[str, Any]], convention: str) -> dict[str, Any]:
    """Values of one convention that rests on rows."""
    return {v["metric"]: v["value"] for v in found if v["convention"] == convention and v["rows"]}


def test_the_corrected_scores() -> None:
    assert values(core_scores(frames()), "corrected") == pytest.approx(
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
            "mia_forget": 2.5,
            "mia_retain": 5.5 / 3,
            # pairs with more loss on the forget text: 2.0 beats 1.0 and ties 2.0, 3.0 beats all
            "forget_retain_separation": (1.5 + 3) / 6,
        }
    )


def test_the_paper_sums_losses_and_rounds_before_it_takes_means() -> None:
    found = values(core_scores(frames()), "paper")
    assert found["mia_forget"] == 5.0 and found["mia_retain"] == 5.5
    assert found["neighbor_level2"] == 0.4
    third = frames(forget=probes("forget", [(1, 1 / 3), (2, 2 / 3), (3, 1 / 3)], "paper"))
    found = values(core_scores(third), "paper")
    assert found["forget_level1"] == 0.333 and found["forget_level2"] == 0.667
    assert found["forget"] == pytest.approx((0.333 + 0.667 + 0.333) / 3)


def test_rwku_turns_the_losses_and_has_no_mean_of_levels() -> None:
    found = {(v["metric"], v["convention"]): v for v in core_scores(frames())}
    assert found["mia_forget", "rwku"]["value"] == -2.5
    assert found["mia_forget", "rwku"]["direction"] == "lower"
    assert found["mia_forget", "corrected"]["direction"] == "higher"
    assert found["mia_retain", "corrected"]["direction"] == "lower"
    assert ("forget", "rwku") not in found
    assert found["forget_level1", "rwku"]["value"] == 0.5


def test_a_crash_leaves_no_number_in_the_conventions_that_crash() -> None:
    rows = probes("forget", FORGET, "corrected") + probes(
        "forget", [(1, 1.0), (1, None), (2, 0.2), (3, 0.4)], "paper"
    )
    found = {(v["metric"], v["convention"]): v for v in core_scores(frames(forget=rows))}
    crashed = found["forget_level1", "paper"]
    assert (crashed["value"], crashed["rows"], crashed["missing"]) == (None, 2, 1)
    assert found["forget", "paper"]["value"] is None
    assert found["forget_level2", "paper"]["value"] == 0.2
    assert found["forget", "corrected"]["value"] == pytest.approx(1.3 / 3)


def test_repeated_rows_do_not_count_and_are_not_missing() -> None:
    rows = probes("neighbor", NEIGHBOR, "paper")
    rows[1] |= {"state": "repeated", "score": None}
    found = {(v["metric"], v["convention"]): v for v in core_scores(frames(neighbor=rows))}
    level = found["neighbor_level2", "paper"]
    assert (level["value"], level["rows"], level["missing"]) == (0.1, 2, 0)
    every = [entry | {"state": "repeated", "score": None} for entry in rows]
    found = {(v["metric"], v["convention"]): v for v in core_scores(frames(neighbor=every))}
    level = found["neighbor_level2", "paper"]
    assert (level["value"], level["rows"], level["missing"]) == (None, 0, 0)


def test_a_missing_level_makes_the_mean_of_levels_missing() -> None:
    rows = frames(forget=probes("forget", [(1, 0.5), (3, 0.7)]))
    found = {v["metric"]: v for v in core_scores(rows) if v["convention"] == "corrected"}
    assert found["forget"]["value"] is None
    assert (found["forget_level2"]["value"], found["forget_level2"]["rows"]) == (None, 0)
    assert found["forget_level1"]["value"] == 0.5
    assert found["forget_rows"]["value"] == pytest.approx(0.6)


def test_without_scores_everything_is_missing() -> None:
    # An absent evaluation is counted by the cells' statuses, not as missing scores.
    nothing = dict.fromkeys(["forget", "neighbor", "mia"])
    found = list(core_scores(nothing))
    assert len(found) > 30
    assert all(v["value"] is None and v["missing"] == 0 and v["rows"] == 0 for v in found)


def test_utility() -> None:
    undefined = entry("utility_truthfulness", "mc1", "corrected", None, state="undefined")
    rows = [
        *[entry("utility_truthfulness", "mc1", "corrected", s) for s in (1.0, 0.0, 1.0)],
        undefined,
    ]
    names = ("general", "reason", "truthfulness", "factuality", "fluency")
    found = utility_scores(dict.fromkeys(names) | {"truthfulness": table(rows)})
    mc1 = next(v for v in found if v["metric"] == "truthfulness_mc1" and v["rows"])
    assert (mc1["value"], mc1["rows"], mc1["missing"]) == (pytest.approx(2 / 3), 4, 1)


def test_every_type_has_a_value_or_no_rows() -> None:
    rows = [
        entry("forget_level3", "rouge_l_recall", "corrected", 0.5, type="role play"),
        entry("forget_level3", "rouge_l_recall", "corrected", 1.0, type="role play"),
        entry("forget_level3", "rouge_l_recall", "corrected", 0.25, type="an own type"),
        entry("forget_level1", "rouge_l_recall", "corrected", 0.0, type="role play"),
    ]
    found = [v for v in type_scores({"forget": table(rows)}) if v["convention"] == "corrected"]
    assert [v["type"] for v in found] == [*TYPES, "an own type"]
    own = {v["type"]: (v["value"], v["rows"]) for v in found}
    assert own["role play"] == (0.75, 2)
    assert own["an own type"] == (0.25, 1)
    assert own["cross lingual (German)"] == (None, 0)


def evaluated(forget: float, neighbor: Sequence[tuple[int, float]]) -> dict[str, pd.DataFrame]:
    levels = [(level, forget) for level in (1, 2, 3)]
    found = frames(forget=probes("forget", levels), neighbor=probes("neighbor", neighbor))
    rows = [entry("utility_general", "accuracy", c, forget) for c in ("corrected", "paper")]
    empty = dict.fromkeys(("reason", "truthfulness", "factuality", "fluency"), table([]))
    return {**found, **empty, "general": table(rows)}


def test_differences_are_against_the_base_model_on_the_same_target() -> None:
    tree = tree_of(inits=["cold"])
    both = [(1, 0.5), (2, 0.5)]
    for target, before, after in (("bruce-lee", 0.9, 0.30049), ("karl-marx", 0.5, 0.4)):
        tree.evaluate("base/tiny", target, rwku=evaluated(before, both))
        tree.train(policy(target))
        tree.evaluate(policy(target), target, rwku=evaluated(after, [(1, 0.25)]))
    found = rwku_core_tables(tree.results())
    one = found["rwku_core_targets"]
    for target, change in (("bruce-lee", -0.59951), ("karl-marx", -0.1)):
        facts = {"policy": policy(target), "convention": "corrected"}
        assert row(one, metric="forget_delta", **facts)["value"] == pytest.approx(change)
        assert missing(row(one, metric="neighbor_delta", **facts)["value"])
        level = row(one, metric="neighbor_level1_delta", **facts)
        assert level["value"] == pytest.approx(0.25 - 0.5)
    paper = row(one, policy=policy("bruce-lee"), metric="forget_delta", convention="paper")
    assert paper["value"] == pytest.approx(0.3 - 0.9)  # rounded before the difference
    assert one[one["kind"] == "base"]["metric"].str.endswith("_delta").sum() == 0
    facts = {"kind": "grpo", "population": "learned", "convention": "corrected"}
    delta = row(found["rwku_core"], metric="forget_delta", **facts)
    assert (delta["median"], delta["n"]) == (pytest.approx(-(0.59951 + 0.1) / 2), 2)
    whole = row(found["rwku_core"], metric="neighbor", **facts)
    assert whole["n"] == 0 and missing(whole["median"])
    assert row(found["rwku_core"], metric="forget_level1", **facts)["rows"] == 2
    general = row(rwku_utility_tables(tree.results())["rwku_utility"], metric="general", **facts)
    assert general["median"] == pytest.approx((0.30049 + 0.4) / 2)


def test_without_the_base_model_there_is_no_difference() -> None:
    tree = tree_of(inits=["cold"])
    tree.train(policy("bruce-lee"))
    tree.evaluate(policy("bruce-lee"), "bruce-lee", rwku=frames())
    one = rwku_core_tables(tree.results())["rwku_core_targets"]
    facts = {"policy": policy("bruce-lee"), "convention": "corrected"}
    assert missing(row(one, metric="forget_delta", **facts)["value"])
    assert row(one, metric="forget", **facts)["value"] == pytest.approx(1.3 / 3)


def test_rows_stand_in_the_same_order_whatever_the_order_of_the_grid() -> None:
    axes = {"targets": ["karl-marx", "bruce-lee"], "inits": ["warm", "cold"], "seeds": [1, 0]}
    one = tree_of(**axes)
    other = tree_of(**{name: values[::-1] for name, values in axes.items()})
    one.train(policy("bruce-lee", seed=1))
    one.evaluate(policy("bruce-lee", seed=1), "bruce-lee", rwku=evaluated(0.5, NEIGHBOR))
    for make in (rwku_core_tables, rwku_utility_tables, rwku_types_tables):
        first, second = make(one.results()), make(other.results())
        for name in first:
            pd.testing.assert_frame_equal(first[name], second[name])
