"""The status of every cell, with evidence, and which results may be counted."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from label_rows import share
from results_tree import NO_LEARNING, Tree, working_in
from unlearning_grid.errors import UserError
from unlearning_grid.paths import policy_dir, stage_dir
from unlearning_grid.runtime.attempts import Ledger
from unlearning_grid.runtime.lease import Lease
from unlearning_grid.tables.cells import cells_table
from unlearning_grid.tables.heldout import heldout_tables
from unlearning_grid.tables.results import Results, open_results
from unlearning_grid.tables.training import training_table

AXES: dict[str, Any] = {
    "sizes": ["tiny"],
    "targets": ["bruce-lee", "karl-marx"],
    "inits": ["cold", "warm"],
    "rewards": ["r0-lex"],
    "seeds": [0],
}
LEE_COLD = "grpo/tiny/bruce-lee/cold/r0-lex/s0"
LEE_WARM = "grpo/tiny/bruce-lee/warm/r0-lex/s0"
MARX_COLD = "grpo/tiny/karl-marx/cold/r0-lex/s0"
MARX_WARM = "grpo/tiny/karl-marx/warm/r0-lex/s0"
WARM_UP = {"status": "finished", "steps": 10, "rule": {"share": 0.125, "threshold": 0.1}}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    with working_in(tmp_path, monkeypatch):
        yield Tree(**AXES)


def shown(tree: Tree) -> dict[str, tuple[str, str | None]]:
    """Policy -> (status, evidence) in the cells table."""
    frame = cells_table(tree.results()).set_index("policy")
    evidence = frame["evidence"].astype(object).where(frame["evidence"].notna(), None)
    return {p: (frame["status"][p], evidence[p]) for p in frame.index}


def killed(folder: Path, spec_digest: str) -> None:
    """What a job leaves that was killed before it could say anything."""
    work = folder / "work" / "0123456789abcdef"
    work.mkdir(parents=True)
    Ledger(folder, work.name, spec_digest, "nonce")._append(event="start")


def test_nothing_is_there_and_every_cell_is_shown(tree: Tree) -> None:
    frame = cells_table(tree.results())
    assert frame["policy"].tolist() == [LEE_COLD, LEE_WARM, MARX_COLD, MARX_WARM]
    assert set(frame["status"]) == {"not-run"}
    assert frame["steps"].isna().all() and not frame["evaluated"].any()


def test_each_status_is_shown_with_its_evidence(tree: Tree) -> None:
    tree.train("warmup/tiny/bruce-lee/s0", WARM_UP)
    tree.train(LEE_COLD)
    tree.train(LEE_WARM, NO_LEARNING)
    with pytest.raises(UserError):
        tree.train(MARX_COLD, UserError("grpo: KL is 3.1 at the first step; check the reference"))
    assert shown(tree) == {
        LEE_COLD: ("learned", None),
        LEE_WARM: (
            "no-learning",
            "mean active-group rate 0.012 over the first 25 rollouts, at most 0.05; "
            "stopped at step 50",
        ),
        MARX_COLD: ("failed", "UserError: grpo: KL is 3.1 at the first step; check the reference"),
        MARX_WARM: ("not-run", None),
    }


def test_a_cell_waits_for_a_failed_warm_up(tree: Tree) -> None:
    with pytest.raises(RuntimeError):
        tree.train("warmup/tiny/karl-marx/s0", RuntimeError("out of memory"))
    assert shown(tree)[MARX_WARM] == (
        "not-run",
        "its warm-up failed: RuntimeError: out of memory",
    )
    assert shown(tree)[MARX_COLD] == ("not-run", None)


def test_a_killed_attempt_is_a_failure_and_a_running_one_is_not(tree: Tree) -> None:
    killed(policy_dir(MARX_COLD), "an older spec")
    assert shown(tree)[MARX_COLD] == ("not-run", None)
    expected = tree.results().plan["expected"][policy_dir(LEE_COLD).as_posix()]
    killed(policy_dir(LEE_COLD), expected)
    assert shown(tree)[LEE_COLD] == (
        "failed",
        "killed: the last attempt started and left no word",
    )
    lease = Lease(policy_dir(LEE_COLD) / "work" / "0123456789abcdef")
    lease.acquire()
    try:
        assert shown(tree)[LEE_COLD] == ("not-run", "running")
    finally:
        lease.release()
    assert shown(tree)[LEE_COLD][0] == "failed"


def test_a_failure_is_forgotten_once_the_cell_succeeds(tree: Tree) -> None:
    with pytest.raises(RuntimeError):
        tree.train(LEE_COLD, RuntimeError("once"))
    assert shown(tree)[LEE_COLD][0] == "failed"
    tree.train(LEE_COLD)
    assert shown(tree)[LEE_COLD] == ("learned", None)


def test_a_result_of_another_spec_is_stale(tree: Tree) -> None:
    tree.train(LEE_COLD, version=2)
    assert shown(tree)[LEE_COLD] == ("not-run", "stale: made from another spec")


def test_a_result_of_another_input_is_stale(tree: Tree) -> None:
    tree.train("warmup/tiny/bruce-lee/s0", WARM_UP)
    tree.train(LEE_WARM)
    assert shown(tree)[LEE_WARM][0] == "learned"
    tree.train("warmup/tiny/bruce-lee/s0", WARM_UP | {"steps": 11})
    path = "results/warmup/tiny/bruce-lee/s0/manifest.json"
    # the same spec publishes the result it finds; another one has to be made from nothing
    shutil.rmtree(policy_dir("warmup/tiny/bruce-lee/s0"))
    tree.train("warmup/tiny/bruce-lee/s0", WARM_UP | {"steps": 11})
    assert shown(tree)[LEE_WARM] == ("not-run", f"stale: made from another {path}")


def test_an_input_that_vanished_makes_a_result_stale(tree: Tree) -> None:
    tree.train("warmup/tiny/bruce-lee/s0", WARM_UP)
    tree.train(LEE_WARM)
    shutil.rmtree(policy_dir("warmup/tiny/bruce-lee/s0"))
    assert shown(tree)[LEE_WARM][0] == "not-run"


def test_what_a_stale_result_led_to_is_not_counted(tree: Tree) -> None:
    """The chain holds to its end: the policy is new, its completions and labels are old."""
    tree.train(LEE_COLD)
    tree.evaluate(LEE_COLD, "bruce-lee", audit=share(2, of=2))
    assert rate(tree) == 1.0
    shutil.rmtree(policy_dir(LEE_COLD))
    tree.train(LEE_COLD, {"status": "learned", "steps": 58})
    states = cells_table(tree.results()).set_index("policy").loc[LEE_COLD]
    assert states["status"] == "learned"
    assert states["state_completions"] == "not-run"
    assert states["state_audit"] == "not-run"
    assert rate(tree) is None
    with pytest.raises(UserError, match=stage_dir("audit", LEE_COLD, "bruce-lee").as_posix()):
        tree.results(strict=True).file("audit", LEE_COLD, "bruce-lee", "labels.parquet")


def rate(tree: Tree) -> float | None:
    """Semantic leakage of the cold Bruce Lee cell in the table of targets."""
    frame = heldout_tables(tree.results())["heldout_audit_targets"]
    row = frame[(frame["policy"] == LEE_COLD) & (frame["metric"] == "semantic_leakage")]
    (value,) = row["value"]
    return None if value != value else value


def test_strict_mode_names_the_stale_result(tree: Tree) -> None:
    for policy in (LEE_COLD, MARX_COLD):
        tree.train(policy, version=2 if policy == MARX_COLD else 1)
    results = tree.results(strict=True)
    assert results.outcome(LEE_COLD)
    with pytest.raises(UserError, match=rf"results/{MARX_COLD}: not-run \(stale"):
        results.outcome(MARX_COLD)
    with pytest.raises(UserError, match=MARX_COLD):
        tree.results(strict=True).state(policy_dir(MARX_COLD))


def test_strict_tables_refuse_rather_than_leave_out(tree: Tree) -> None:
    tree.train(LEE_COLD)
    for table in (cells_table, training_table, heldout_tables):
        with pytest.raises(UserError):
            table(tree.results(strict=True))


def test_strict_mode_says_what_is_missing_and_how_to_go_on(tree: Tree) -> None:
    with pytest.raises(UserError) as caught:
        tree.results(strict=True).state(policy_dir(LEE_COLD))
    assert LEE_COLD in str(caught.value)
    assert "None" not in str(caught.value)


def test_a_half_written_result_does_not_count(tree: Tree) -> None:
    tree.train(LEE_COLD)
    path = policy_dir(LEE_COLD) / "run.json"
    path.write_text(path.read_text(encoding="utf-8")[:40], encoding="utf-8")
    assert shown(tree)[LEE_COLD][0] == "not-run"


def test_an_accepted_edit_is_shown(tree: Tree) -> None:
    tree.train(LEE_COLD)
    path = policy_dir(LEE_COLD) / "run.json"
    run = json.loads(path.read_text(encoding="utf-8"))
    run["accepted"] = [{"from": "a", "to": "b", "reason": "renamed a variable"}]
    path.write_text(json.dumps(run), encoding="utf-8")
    frame = cells_table(tree.results()).set_index("policy")
    assert frame["accepted"][LEE_COLD] == "stub: renamed a variable"
    assert frame["status"][LEE_COLD] == "learned"


def test_evaluated_means_every_stage_is_there(tree: Tree) -> None:
    tree.train(LEE_COLD)
    scores = pd.DataFrame({"score": [0.5]})
    tree.evaluate(LEE_COLD, "bruce-lee", audit=share(0, of=1))
    row = cells_table(tree.results()).set_index("policy").loc[LEE_COLD]
    assert not row["evaluated"]
    assert (row["state_audit"], row["state_rwku"]) == ("current", "not-run")
    tree.evaluate(LEE_COLD, "bruce-lee", rwku={"forget": scores})
    assert not cells_table(tree.results()).set_index("policy")["evaluated"][LEE_COLD]
    tree.evaluate(LEE_COLD, "bruce-lee", likelihoods=scores)
    assert cells_table(tree.results()).set_index("policy")["evaluated"][LEE_COLD]


def test_the_training_table_has_a_row_for_every_run_that_should_be_there(tree: Tree) -> None:
    tree.train("warmup/tiny/bruce-lee/s0", WARM_UP | {"stopped_by_rule": True})
    tree.train(LEE_COLD)
    with pytest.raises(RuntimeError):
        tree.train(MARX_COLD, RuntimeError("no"))
    frame = training_table(tree.results())
    assert frame["policy"].tolist() == [
        "warmup/tiny/bruce-lee/s0",
        "warmup/tiny/karl-marx/s0",
        LEE_COLD,
        LEE_WARM,
        MARX_COLD,
        MARX_WARM,
    ]
    assert frame["status"].tolist() == [
        "finished", "not-run", "learned", "not-run", "failed", "not-run",
    ]  # fmt: skip
    assert frame["steps"].tolist() == [10, pd.NA, 60, pd.NA, pd.NA, pd.NA]
    assert frame["monitor_share"][0] == 0.125
    assert frame["stopped_by_rule"].tolist()[:2] == [True, pd.NA]


def test_a_plan_is_read_beside_its_manifest(tree: Tree) -> None:
    folder = Path("results/plan")
    tree.make(folder, {"plan.json": tree.plan})
    opened = open_results(folder / "manifest.json", strict=False)
    assert isinstance(opened, Results) and not opened.strict
    assert [cell["policy"] for cell in opened.cells] == [c.policy for c in tree.cells]
