"""Who labelled, with which recall, and what was written in the last rollouts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from label_rows import NINE, labels, missing, policy, row, share, tree_of
from results_tree import working_in
from unlearning_grid.judge.names import instruments, same_model
from unlearning_grid.paths import policy_dir, stage_dir
from unlearning_grid.tables.heldout import heldout_tables, rates
from unlearning_grid.tables.results import Results
from unlearning_grid.tables.terminal import has_terminal_audits, terminal_tables


@pytest.fixture(autouse=True)
def fresh_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with working_in(tmp_path, monkeypatch):
        yield


@pytest.mark.parametrize(
    ("reward", "name", "own"),
    [
        ({"provider": "rules", "knowledge": "full"}, "rules:surface", False),
        ({"provider": "openai", "model": "m"}, "openai:m", False),
        (None, None, None),
    ],
)
def test_tables_say_who_labelled_and_whether_that_judge_gave_the_reward(
    reward: dict[str, Any] | None, name: str | None, own: bool | None
) -> None:
    tree = tree_of(inits=["cold"])
    for target in ("bruce-lee", "karl-marx"):
        block = {"name": "r2-rubric"} | ({"judge": reward} if reward else {})
        tree.settings[policy(target)] = {"reward": block}
        tree.train(policy(target))
    tree.evaluate(policy("bruce-lee"), "bruce-lee", audit=labels(NINE))
    table = heldout_tables(tree.results())["heldout_audit"]
    found = row(table, kind="grpo", population="learned", metric="refusal")
    assert (found["judge"], found["detector"]) == ("rules:oracle", "demo-refusal")
    assert found["failed_verdicts"] == 1, "counted apart from labels that a judge cannot give"
    if own is None:
        assert missing(found["reward_judge"]) and missing(found["judged_by_own_reward"])
    else:
        assert found["reward_judge"] == name and found["judged_by_own_reward"] == own


@pytest.mark.parametrize(
    ("reward", "audit", "own"),
    [
        ({"provider": "rules", "knowledge": "answers"}, "rules:lower-bound", True),
        ({"provider": "openai", "model": "m", "effort": "low"}, "openai:m effort=medium", True),
        ({"provider": "openai", "model": "m", "base_url": "$A"}, "openai:m", False),
        ({"provider": "openai", "model": "m"}, "openai:n", False),
    ],
)
def test_the_same_model_is_recognised_whatever_its_decoding(
    reward: dict[str, Any], audit: str, own: bool
) -> None:
    assert same_model(audit, instruments({"judge": reward})["judge"]) is own


def test_a_refusal_that_repeats_the_detector_makes_no_finding_beside_it() -> None:
    """Else "refuses, says the judge, and not the detector" would be a constant 0."""
    frame = labels(NINE).assign(refusal_by_detector=True)
    found = {entry["metric"]: entry for entry in rates(frame)}
    for metric in ("explicit_refusal", "topic_avoidance", "useful_unlearning_rate"):
        assert found[metric]["value"] is None and found[metric]["missing"] == 9, metric
    assert found["refusal"]["value"] == pytest.approx(3 / 8)


def test_the_threshold_is_the_rewards_own() -> None:
    """0.497 is 0.50 to two decimals, and a refusal to R2's prefilter."""
    frame = share(0, of=1).assign(refusal_probability=0.497)
    assert {e["metric"]: e["value"] for e in rates(frame)}["detector_refusal"] == 1.0


def test_terminal_rates_are_over_a_runs_completions_and_quartiles_over_targets() -> None:
    tree = tree_of(inits=["cold"])
    plan = tree.plan
    for target, leaks in (("bruce-lee", 2), ("karl-marx", 5)):
        tree.train(policy(target))
        folder = stage_dir("terminal", policy(target), target)
        tree.make(folder, {"labels.parquet": share(leaks)}, [policy_dir(policy(target))])
    for cell in plan["cells"]:
        folder = stage_dir("terminal", cell["policy"], cell["target"])
        plan["expected"][folder.as_posix()] = tree.digest(folder)
    frames = terminal_tables(Results(plan, strict=False))
    found = row(
        frames["terminal_audit"], reward="r0-lex", population="learned", metric="semantic_leakage"
    )
    assert found[["median", "q1", "q3"]].tolist() == pytest.approx([0.35, 0.275, 0.425])
    assert found["n"] == 2 and found["judge"] == "rules:oracle"
    assert has_terminal_audits(Results(plan)) and not has_terminal_audits(tree.results())
    assert set(frames["terminal_audit_targets"]["kind"]) == {"grpo"}


def test_the_recall_of_a_lower_bound_stands_beside_its_rates() -> None:
    tree = tree_of(inits=["cold"])
    for target, recall in (("bruce-lee", 0.5), ("karl-marx", 0.75)):
        tree.train(policy(target))
        tree.evaluate(policy(target), target, audit=share(2).assign(gold_recall_whole=recall))
    frames = heldout_tables(tree.results())
    one = row(
        frames["heldout_audit_targets"], policy=policy("karl-marx"), metric="semantic_leakage"
    )
    assert one["gold_recall_whole"] == 0.75
    facts = {"kind": "grpo", "population": "learned", "metric": "semantic_leakage"}
    assert row(frames["heldout_audit"], **facts)["gold_recall_whole"] == pytest.approx(0.625)
