"""Agreement of two raters, with values worked out by hand, and the table over evaluations."""

from typing import Any

import pandas as pd
import pytest

from results_tree import Tree, working_in
from unlearning_grid.judge.labels import SIX
from unlearning_grid.paths import opinion_stage, stage_dir
from unlearning_grid.tables.agreement import agreement_table, compare

T, F, N = True, False, None


@pytest.mark.parametrize(
    ("one", "other", "n", "missing", "agreement", "kappa"),
    [
        # 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: 0.7 agreed, 0.5 by chance
        ([T] * 25 + [F] * 25, [T] * 20 + [F] * 5 + [T] * 10 + [F] * 15, 50, 0, 0.7, 0.4),
        ([T, F, T, F], [T, F, T, F], 4, 0, 1.0, 1.0),
        ([T, F, T, F], [F, T, F, T], 4, 0, 0.0, -1.0),
        ([T, T, F, F], [T, F, T, F], 4, 0, 0.5, 0.0),
        ([T, T, T], [T, T, T], 3, 0, 1.0, None),  # nothing to agree on
        ([T, T, T, F], [T, T, T, T], 4, 0, 0.75, 0.0),  # one rater is constant
        ([T, N, F, pd.NA, float("nan")], [T, T, N, F, F], 1, 4, 1.0, None),
        ([N, N], [T, F], 0, 2, None, None),
        ([], [], 0, 0, None, None),
    ],
)
def test_agreement_and_kappa(one, other, n, missing, agreement, kappa):
    found = compare(one, other)
    assert (found["n"], found["missing"]) == (n, missing)
    assert found["agreement"] == (None if agreement is None else pytest.approx(agreement))
    assert found["kappa"] == (None if kappa is None else pytest.approx(kappa))


def labels(judge: str, refusal: list[Any], probability: list[float], replicate: int = 0) -> Any:
    n = len(refusal)
    frame = pd.DataFrame(
        {
            "prompt_id": [f"p{i}" for i in range(n)],
            "completion": [f"text {i}" for i in range(n)],
            "refusal_probability": probability,
            "detector": "phrases",
            "judge": judge,
            "judge_prompt": "reworded-v1/audit-six 01234567",
            "judge_entry": judge,
            "refusal_by_detector": False,
            "replicate": replicate,
        }
    )
    for name in SIX:
        frame[name] = pd.array([False] * n, dtype="boolean")
    frame["refusal"] = pd.array(refusal, dtype="boolean")
    return frame


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Two base models on one target; the second judge saw the first two completions only."""
    tree = Tree(
        sizes=["tiny", "small"], targets=["a"], inits=["cold"], rewards=["r0-lex"], seeds=[0]
    )
    with working_in(tmp_path, monkeypatch):
        opinions = [{"judge": "second", "replicate": "0"}, {"judge": "audit", "replicate": "1"}]
        plan: dict[str, Any] = tree.plan | {"opinions": opinions}
        for size in ("tiny", "small"):
            base = f"base/{size}"
            tree.evaluate(base, "a", audit=labels("first", [T, T, F, N], [0.9, 0.1, 0.1, 0.9]))
            completions = stage_dir("completions", base, "a")
            for opinion, frame in zip(
                opinions,
                (
                    labels("second", [T, F], [0.9, 0.1]),
                    labels("first", [T, T, F, F], [0.9, 0.1, 0.1, 0.9], replicate=1),
                ),
                strict=True,
            ):
                folder = stage_dir(opinion_stage(**opinion), base, "a")
                tree.make(folder, {"labels.parquet": frame}, [completions])
                plan["expected"][folder.as_posix()] = tree.digest(folder)
        found = tree.results()
        found.plan = plan
        yield found


def test_every_comparison_has_a_row_per_label_pooled_and_per_group(results):
    table = agreement_table(results)
    counts = table.groupby(["comparison", "second"]).size().to_dict()
    # pooled + tiny + small, six labels each; the detector knows one
    assert counts == {("detector", "phrases"): 3, ("judges", "second"): 18, ("retest", "first"): 18}
    refusals = table[table["label"] == "refusal"].set_index(["comparison", "size"])
    pooled = refusals[refusals.index.get_level_values("size").isna()]
    pooled = pooled.droplevel("size")
    assert pooled["n"].to_dict() == {"detector": 6, "judges": 4, "retest": 6}
    assert pooled["missing"].to_dict() == {"detector": 2, "judges": 0, "retest": 2}
    assert pooled["agreement"].to_dict() == {
        "detector": pytest.approx(2 / 3),
        "judges": 0.5,
        "retest": 1.0,
    }
    assert refusals.loc[("judges", "tiny"), "n"] == 2
    assert list(table["label"][table["comparison"] == "judges"][:6]) == list(SIX)


def test_opinions_on_other_completions_are_refused(results):
    folder = stage_dir(opinion_stage("second", 0), "base/tiny", "a")
    frame = labels("second", [T, F], [0.9, 0.1]).assign(completion="something else")
    Tree(sizes=["tiny"], targets=["a"], inits=["cold"], rewards=["r0-lex"], seeds=[0]).make(
        folder, {"labels.parquet": frame}, [stage_dir("completions", "base/tiny", "a")]
    )
    with pytest.raises(ValueError, match="not about the same completions"):
        agreement_table(results.__class__(results.plan, strict=False))


def test_without_any_audit_the_table_is_empty_but_has_its_columns(tmp_path, monkeypatch):
    tree = Tree(sizes=["tiny"], targets=["a"], inits=["cold"], rewards=["r0-lex"], seeds=[0])
    with working_in(tmp_path, monkeypatch):
        table = agreement_table(tree.results())
    assert len(table) == 0 and {"comparison", "label", "kappa", "n"} <= set(table.columns)


def test_two_entries_with_one_model_and_prompt_stay_apart(results):
    """Two decodings of a model are two judges, whatever else they share."""
    other = {"judge": "third", "replicate": "0"}
    folder = stage_dir(opinion_stage(**other), "base/tiny", "a")
    frame = labels("second", [F, T], [0.9, 0.1]).assign(judge_entry="third")
    tree = Tree(sizes=["tiny"], targets=["a"], inits=["cold"], rewards=["r0-lex"], seeds=[0])
    tree.make(folder, {"labels.parquet": frame}, [stage_dir("completions", "base/tiny", "a")])
    absent = stage_dir(opinion_stage(**other), "base/small", "a")
    plan = results.plan
    plan["opinions"].append(other)
    plan["expected"] |= {folder.as_posix(): tree.digest(folder), absent.as_posix(): "none"}
    table = agreement_table(results.__class__(plan, strict=False))
    found = table[(table["comparison"] == "judges") & (table["label"] == "refusal")]
    pooled = found[found["kind"].isna()].set_index("second_entry")
    assert pooled["n"].to_dict() == {"second": 4, "third": 2}
    assert pooled["agreement"].to_dict() == {"second": 0.5, "third": 0.5}


def test_a_judge_that_repeats_the_detector_is_not_held_against_it(results):
    folder = stage_dir("audit", "base/tiny", "a")
    frame = labels("rules:lower-bound", [T, T, F, F], [0.9] * 4).assign(refusal_by_detector=True)
    tree = Tree(sizes=["tiny"], targets=["a"], inits=["cold"], rewards=["r0-lex"], seeds=[0])
    tree.make(folder, {"labels.parquet": frame}, [stage_dir("completions", "base/tiny", "a")])
    table = agreement_table(results.__class__(results.plan, strict=False))
    detector = table[(table["comparison"] == "detector") & table["kind"].isna()]
    assert detector["n"].item() == 3, "the other base model's only"
