"""leak@k and label rates of sampled completions, with values worked out by hand."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from label_rows import NA, F, T, labels, missing, policy, row, tree_of
from results_tree import NO_LEARNING, Tree, working_in
from unlearning_grid.paths import policy_dir, sampled_stage, stage_dir
from unlearning_grid.runtime.job import Job
from unlearning_grid.tables.colours import COLOURS, OTHERS, colours
from unlearning_grid.tables.leak import has_sampled_audits, leak_tables, leaks
from unlearning_grid.tables.leak_figure import draw, leak_points
from unlearning_grid.tables.partial import build
from unlearning_grid.tables.results import Results
from unlearning_grid.tables.sampled import sampled_tables

CLEAN = [F, F, F]
# Six samples of three prompts. 0: one leak; 1: none; 2: two leaks among five verdicts.
SIX_OF_THREE = [[T, F, F, F, F, F], [F] * 6, [T, T, NA, F, F, F]]
AT = {
    1: (1 / 6 + 0 + 2 / 5) / 3,
    2: (2 / 6 + 0 + 7 / 10) / 3,
    4: (4 / 6 + 0 + 1) / 3,
    6: (1 + 0) / 2,  # prompt 2 has five verdicts
}


@pytest.fixture(autouse=True)
def fresh_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with working_in(tmp_path, monkeypatch):
        yield


def audited(greedy: Sequence[Any], samples: Sequence[Sequence[Any]]) -> pd.DataFrame:
    """Labels as audit_samples writes them: semantic leaks as given, nothing lexical."""
    asked = [("greedy", f"p{i}", None, leak) for i, leak in enumerate(greedy)]
    for i, drawn in enumerate(samples):
        asked += [("sampled", f"p{i}", number, leak) for number, leak in enumerate(drawn)]
    semantic = [leak for *_, leak in asked]
    frame = labels([(F, leak, F, F, F, F, "leak" if leak else "offtopic", NA) for leak in semantic])
    decoding, prompts, numbers, _ = zip(*asked, strict=True)
    frame["decoding"], frame["prompt_id"] = list(decoding), list(prompts)
    frame["sample"] = pd.array(list(numbers), dtype="Int64")
    return frame.assign(detector=None, refusal_by_detector=True)


def planned(tree: Tree, *audits: tuple[str, str, str], samples: int = 6) -> Results:
    """What is there of a plan with these audits of samples: (judge, policy, target)."""
    plan: dict[str, Any] = tree.plan | {"samples": samples}
    plan["sampled_audits"] = [
        dict(zip(("judge", "policy", "target"), one, strict=True)) for one in audits
    ]
    for folder in (folder_of(*one) for one in audits):
        plan["expected"][folder.as_posix()] = tree.digest(folder)
    return Results(plan, strict=False)


def folder_of(judge: str, who: str, target: str) -> Path:
    return stage_dir(sampled_stage(judge), who, target)


def make(tree: Tree, judge: str, who: str, target: str, frame: pd.DataFrame) -> None:
    trained = [] if who.startswith("base/") else [policy_dir(who)]
    tree.make(folder_of(judge, who, target), {"labels.parquet": frame}, trained)


def by_k(found: Sequence[dict[str, Any]], event: str) -> dict[int, dict[str, Any]]:
    return {one["k"]: one for one in found if one["event"] == event}


# One evaluation.


def test_clean_when_greedy_and_leaking_when_sampled() -> None:
    found = by_k(leaks(audited(CLEAN, SIX_OF_THREE), 6), "semantic")
    assert {k: one["value"] for k, one in found.items()} == pytest.approx(AT)
    assert {k: (one["prompts"], one["missing"]) for k, one in found.items()} == {
        1: (3, 0),
        2: (3, 0),
        4: (3, 0),
        6: (2, 1),
    }
    for one in found.values():
        assert (one["greedy"], one["clean_greedy_leaks_sampled"]) == (0.0, 1)
        assert (one["samples"], one["missing_verdicts"]) == (6, 1)


def test_the_lexical_event_stands_beside_and_has_its_own_verdicts() -> None:
    frame = audited(CLEAN, SIX_OF_THREE)
    frame.loc[frame["decoding"] == "greedy", "lexical_leakage"] = pd.array([T, F, F], "boolean")
    found = by_k(leaks(frame, 6), "lexical")
    assert {k: one["value"] for k, one in found.items()} == {1: 0.0, 2: 0.0, 4: 0.0, 6: 0.0}
    assert found[6]["prompts"] == 3 and found[6]["missing_verdicts"] == 0
    assert found[1]["greedy"] == pytest.approx(1 / 3)
    assert found[1]["clean_greedy_leaks_sampled"] == 0


@pytest.mark.parametrize(
    ("greedy", "share", "flag"),
    [
        ([F, F, F], 0.0, 1),
        ([T, F, F], 1 / 3, 0),
        ([T, NA, NA], 1.0, 0),
        ([F, NA, F], 0.0, None),  # nobody knows about the second
        ([F, F], 0.0, None),  # fewer prompts than were sampled
        ([NA, NA, NA], None, None),
        ([], None, None),
    ],
)
def test_clean_is_said_only_with_a_verdict_on_every_prompt(
    greedy: list[Any], share: float | None, flag: int | None
) -> None:
    one = by_k(leaks(audited(greedy, SIX_OF_THREE), 6), "semantic")[1]
    assert one["greedy"] == (None if share is None else pytest.approx(share))
    assert one["clean_greedy_leaks_sampled"] == flag


def test_prompts_without_enough_verdicts_have_no_value_and_are_counted() -> None:
    found = by_k(leaks(audited([F, F], [[NA, NA, NA], [NA, F, F]]), 3), "semantic")
    assert [(k, one["value"], one["missing"]) for k, one in found.items()] == [
        (1, 0.0, 1),
        (2, 0.0, 1),
        (3, None, 2),
    ]
    assert found[3]["clean_greedy_leaks_sampled"] is None
    assert found[1]["missing_verdicts"] == 4


def test_without_labels_everything_is_missing() -> None:
    for one in leaks(None, 6):
        assert one["value"] is None and one["greedy"] is None
        assert (one["prompts"], one["missing"], one["samples"]) == (0, 0, 6)


# Over evaluations.


def test_medians_over_targets_and_who_labelled() -> None:
    tree = tree_of(inits=["cold"])
    frames = {
        "bruce-lee": audited(CLEAN, SIX_OF_THREE),
        "karl-marx": audited([T, T, F], [[T] * 6, [T] * 6, [F] * 6]),
    }
    audits = [("audit", policy(target), target) for target in frames]
    for (judge, who, target), frame in zip(audits, frames.values(), strict=True):
        tree.train(who)
        make(tree, judge, who, target, frame.assign(gold_recall_whole=0.5))
    tables = leak_tables(planned(tree, *audits))
    facts = {"kind": "grpo", "event": "semantic"}
    one = row(tables["leak_at_k_targets"], target="karl-marx", event="semantic", k=2)
    assert one["value"] == pytest.approx(2 / 3) and one["greedy"] == pytest.approx(2 / 3)
    assert (one["judge_entry"], one["judge"]) == ("audit", "rules:oracle")
    two = row(tables["leak_at_k"], population="learned", k=2, **facts)
    assert two["median"] == pytest.approx((AT[2] + 2 / 3) / 2) and two["n"] == 2
    assert two["greedy"] == pytest.approx((0 + 2 / 3) / 2)
    assert two["clean_greedy_leaks_sampled"] == 1, "one of the two"
    assert (two["missing_verdicts"], two["missing"]) == (1, 0)
    assert two["direction"] == "lower" and two["gold_recall_whole"] == 0.5
    six = row(tables["leak_at_k"], population="learned", k=6, **facts)
    assert six["missing"] == 1 and six["median"] == pytest.approx((0.5 + 2 / 3) / 2)
    assert list(tables["leak_at_k"].query("event == 'semantic'")["k"]) == [1, 2, 4, 6] * 2


def test_two_judges_stay_apart_and_the_second_sees_its_part_only() -> None:
    tree = tree_of(inits=["cold"])
    audits = [("audit", policy(t), t) for t in ("bruce-lee", "karl-marx")]
    for judge, who, target in audits:
        tree.train(who)
        make(tree, judge, who, target, audited(CLEAN, SIX_OF_THREE))
    second = ("paid", policy("karl-marx"), "karl-marx")
    stricter = audited([T, T, T], [[T] * 6] * 3).assign(judge="openai:m", judge_entry="paid")
    make(tree, *second, stricter)
    table = leak_tables(planned(tree, *audits, second))["leak_at_k"]
    facts = {"population": "learned", "event": "semantic", "k": 1}
    first, other = (row(table, judge_entry=name, **facts) for name in ("audit", "paid"))
    assert (first["n"], first["median"], first["judge"]) == (
        2,
        pytest.approx(AT[1]),
        "rules:oracle",
    )
    assert (other["n"], other["median"], other["judge"]) == (1, 1.0, "openai:m")


def test_an_absent_audit_is_missing_and_its_cell_is_counted() -> None:
    tree = tree_of(inits=["cold"], targets=["bruce-lee"])
    results = planned(tree, ("audit", policy("bruce-lee"), "bruce-lee"))
    found = row(leak_tables(results)["leak_at_k"], population="learned", event="semantic", k=4)
    assert missing(found["median"]) and missing(found["greedy"]) and found["n"] == 0
    assert found["cells_not_run"] == 1 and found["clean_greedy_leaks_sampled"] == 0


def test_label_rates_are_those_of_the_samples_alone() -> None:
    tree = tree_of(inits=["cold"], targets=["bruce-lee"])
    who = ("audit", "base/tiny", "bruce-lee")
    make(tree, *who, audited([T, T, T], SIX_OF_THREE))
    tables = sampled_tables(planned(tree, who))
    rate = row(tables["sampled_audit_targets"], metric="semantic_leakage")
    assert rate["value"] == pytest.approx(3 / 17)
    assert (rate["completions"], rate["missing"]) == (18, 1)
    drift = row(tables["sampled_audit"], population="learned", metric="class_offtopic")
    assert drift["median"] == pytest.approx(15 / 18) and drift["judge_entry"] == "audit"
    for metric in ("detector_refusal", "explicit_refusal"):  # no detector looks at samples
        found = row(tables["sampled_audit_targets"], metric=metric)
        assert missing(found["value"]) and found["missing"] == 18


# The figure, and the tables of what is there.


def test_the_figure_shows_evaluated_policies_by_the_judge_that_labels_all(tmp_path: Path) -> None:
    tree = tree_of(inits=["cold"], targets=["bruce-lee"], rewards=["r0-lex", "r4-refusal"])
    base, cell = ("audit", "base/tiny", "bruce-lee"), ("audit", policy("bruce-lee"), "bruce-lee")
    other = ("paid", *cell[1:])
    absent = ("audit", policy("bruce-lee", reward="r4-refusal"), "bruce-lee")
    tree.train(cell[1], NO_LEARNING)
    make(tree, *base, audited([T, T, T], [[T] * 6] * 3))
    make(tree, *cell, audited(CLEAN, SIX_OF_THREE))
    make(tree, *other, audited(CLEAN, [[F] * 6] * 3))
    points = leak_points(planned(tree, base, cell, other, absent))
    assert set(points["judge_entry"]) == {"audit"}
    assert set(points["reward"].dropna()) == {"r0-lex"}, "nothing is there of the other"
    curve = points[(points["kind"] == "grpo") & (points["event"] == "semantic")]
    assert dict(zip(curve["k"], curve["median"], strict=True)) == pytest.approx(AT)
    assert list(curve["greedy"]) == [0.0] * 4 and list(curve["n"]) == [1] * 4
    pictures = {}
    for name, shown in {
        "all": points,
        "again": points,
        "without the cell": points[points["kind"] == "base"],
        "nothing": points[:0],
    }.items():
        draw(shown, tmp_path / f"{name}.png", tmp_path / f"{name}.pdf")
        pictures[name] = (tmp_path / f"{name}.png").read_bytes()
        assert pictures[name][:8] == b"\x89PNG\r\n\x1a\n"
    assert pictures["all"] == pictures["again"] != pictures["without the cell"]


def test_a_reward_has_one_colour_in_all_panels() -> None:
    found = colours(["r2-rubric", "own", "r0-lex", "another", "own"])
    assert found == {
        "another": OTHERS[0],
        "own": OTHERS[1],
        "r0-lex": COLOURS["r0-lex"],
        "r2-rubric": COLOURS["r2-rubric"],
    }
    many = colours(f"reward-{number}" for number in range(9))
    assert many["reward-3"] == many["reward-8"] == OTHERS[-1], "rather than none"


@pytest.mark.parametrize("asked", [True, False])
def test_partial_tables_hold_what_was_sampled_so_far(asked: bool, tmp_path: Path) -> None:
    tree = tree_of(inits=["cold"], targets=["bruce-lee"])
    audits = [("audit", who, "bruce-lee") for who in ("base/tiny", policy("bruce-lee"))]
    make(tree, *audits[0], audited(CLEAN, SIX_OF_THREE))
    results = planned(tree, *(audits if asked else []))
    assert has_sampled_audits(results) is asked
    plan = {**results.plan}
    plan["expected"] |= {"results/tables/refusal_detectors": "none"}
    tree.make(Path("results/plan"), {"plan.json": plan})
    outputs = {name: tmp_path / "made" / name for name in ("tables", "figures")}
    (tmp_path / "made").mkdir()
    manifest = Path("results/plan/manifest.json")
    build(Job(spec={}, inputs={"plan": manifest}, outputs=outputs, work=tmp_path / "work"))
    made = {path.name for folder in outputs.values() for path in folder.iterdir()}
    wanted = {"leak_at_k.png", "leak_at_k.pdf", "leak_at_k.csv", "leak_at_k_targets.parquet"}
    wanted |= {"sampled_audit.csv", "sampled_audit_targets.parquet"}
    assert wanted <= made if asked else not wanted & made
    if asked:
        table = pd.read_parquet(outputs["tables"] / "leak_at_k.parquet")
        facts = {"population": "evaluated", "event": "semantic", "k": 2}
        assert row(table, kind="base", **facts)["median"] == pytest.approx(AT[2])
        assert missing(row(table, kind="grpo", **facts)["median"])
