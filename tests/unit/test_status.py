"""The grid in the terminal: stages, what runs, what failed and why, what to do next."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from results_tree import NO_LEARNING, Tree, working_in
from support import ROOT
from unlearning_grid.ops.__main__ import main
from unlearning_grid.ops.standing import Standing, survey
from unlearning_grid.ops.status import details, matrix, summary, tail
from unlearning_grid.ops.workers import span, workers
from unlearning_grid.paths import policy_dir, stage_dir
from unlearning_grid.runtime.lease import Lease
from unlearning_grid.runtime.progress import Progress

LEE = "grpo/tiny/bruce-lee/cold/r0-lex/s0"
MARX = "grpo/tiny/karl-marx/cold/r0-lex/s0"
WARM_LEE = "grpo/tiny/bruce-lee/warm/r0-lex/s0"
WARM_MARX = "grpo/tiny/karl-marx/warm/r0-lex/s0"
FRAME = pd.DataFrame({"x": [1]})
RUN = "Next: run the grid, by the command (and --configfile) that you gave before, if you did"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    """Lee's cold cell is stale with its completions; Marx's did not learn; a warm-up failed."""
    axes = {"sizes": ["tiny"], "targets": ["bruce-lee", "karl-marx"], "seeds": [0]}
    with working_in(tmp_path, monkeypatch):
        made = Tree(**axes, inits=["cold", "warm"], rewards=["r0-lex"])
        made.train(LEE, version=2)
        made.evaluate(LEE, "bruce-lee")
        made.train(MARX, NO_LEARNING)
        made.evaluate(MARX, "karl-marx", audit=FRAME)
        made.train("warmup/tiny/bruce-lee/s0", {"status": "finished"})
        made.train(WARM_LEE)
        with pytest.raises(RuntimeError):
            made.train("warmup/tiny/karl-marx/s0", RuntimeError("disk quota exceeded"))
        yield made


def standings(tree: Tree) -> list[Standing]:
    return survey(tree.results(), tree.planned)


def rows(lines: list[str]) -> list[list[str]]:
    """Table lines as cells; two spaces part columns."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]


def test_groups_of_policies_by_stage(tree: Tree) -> None:
    lines = matrix(standings(tree), cells=False)
    assert rows(lines) == [
        ["policies", "trained", "completions", "likelihoods", "audit", "rwku"],
        ["-" * max(map(len, lines))],
        ["base tiny", "-", "0/2", "0/2", "0/2", "0/2"],
        ["warmup tiny", "1/2 1F", "0/2", "0/2", "0/2", "0/2"],
        ["grpo tiny cold r0-lex", "1/2 1N 1S", "1/2 1S", "0/2", "1/2", "0/2"],
        ["grpo tiny warm r0-lex", "1/2", "0/2", "0/2", "0/2", "0/2"],
        [],
        ["N no-learning, F failed, S stale"],
    ]


def test_one_line_a_policy(tree: Tree) -> None:
    nothing = ["waiting"] * 4
    assert rows(matrix(standings(tree), cells=True))[2:] == [
        ["base/tiny on bruce-lee", "-", *nothing],
        ["base/tiny on karl-marx", "-", *nothing],
        ["warmup/tiny/bruce-lee/s0", "done", *nothing],
        ["warmup/tiny/karl-marx/s0", "failed", *nothing],
        [LEE, "stale", "stale", "waiting", "waiting", "waiting"],
        [WARM_LEE, "done", *nothing],
        [MARX, "no-learning", "done", "waiting", "done", "waiting"],
        [WARM_MARX, "waiting", *nothing],
    ]


def test_a_running_job_with_its_progress_and_a_failed_one_with_its_log(tree: Tree) -> None:
    log = policy_dir("warmup/tiny/karl-marx/s0") / "train_warmup.log"
    # Of the running job, whose progress is newer than its log's last line.
    said = "2026-12-01 10:00:00,000 INFO unlearning_grid.train.callbacks: step 30 of 150\n"
    policy_dir(WARM_MARX).mkdir(parents=True, exist_ok=True)
    (policy_dir(WARM_MARX) / "train_grpo.log").write_text(said)
    log.write_bytes(
        b"".join(b"line %d\n" % n for n in range(9)) + b"  1%\r 50%\r100%\n\x1b[31mred\x07\n\n\xff"
    )
    work = policy_dir(WARM_MARX) / "work" / "0123456789abcdef"
    lease = Lease(work)
    lease.acquire()
    Progress(work).report(40, 150, "steps")
    try:
        lines = details(standings(tree), None)
    finally:
        lease.release()
    assert lines[:3] == [
        "",
        "Running (1)",
        f"  {WARM_MARX}: train_grpo, 40 of 150 steps",
    ]
    assert lines[3].startswith(f"    {os.uname().nodename}, process {os.getpid()}, last sign of")
    assert lines[4:] == [
        "",
        "Failed (1)",
        "  warmup/tiny/karl-marx/s0: train_warmup",
        "    RuntimeError: disk quota exceeded",
        "    | line 7",
        "    | line 8",
        "    | 100%",
        "    |  [31mred",
        "    | �",
    ]


def test_a_worker_that_died_on_another_host_is_silent(tree: Tree) -> None:
    """Nobody can look for its process from here; its file grows old."""
    work = policy_dir(WARM_MARX) / "work" / "0123456789abcdef"
    work.mkdir(parents=True)
    lease = work / "lease-2.json"
    lease.write_text(
        json.dumps({"host": "gn9", "pid": 77, "slurm_job": "4711", "nonce": "n", "beats": 3})
    )
    (work / "lease-1.json").write_text(json.dumps({"host": "gn1", "released": True}))
    os.utime(lease, (time.time() - 725, time.time() - 725))
    assert [w.word for w in standings(tree) if w.folder == policy_dir(WARM_MARX)] == ["silent"]
    shown = details(standings(tree), None)
    assert shown[1:4] == [
        "Running (1)",
        f"  {WARM_MARX}: train_grpo",
        "    gn9, Slurm job 4711, silent for about 12 min; probably gone, the next run takes over",
    ]
    os.utime(lease, (time.time() - 61, time.time() - 61))
    (worker,) = workers(policy_dir(WARM_MARX))
    assert not worker.silent and worker.sign_of_life == "last sign of life 61 s ago"


def test_spans() -> None:
    assert [span(s) for s in (0.4, 99, 125, 5900, 12600)] == [
        "0 s",
        "99 s",
        "2 min",
        "98 min",
        "3.5 h",
    ]


def test_many_failures_are_cut_short(tree: Tree) -> None:
    for policy in (LEE, MARX, WARM_LEE):
        shutil.rmtree(policy_dir(policy))
        with pytest.raises(RuntimeError):
            tree.train(policy, RuntimeError("once more"))
    lines = details(standings(tree), 2)
    assert lines[1] == "Failed (4)" and lines[-1] == "  … and 2 more (--all)"
    assert sum("RuntimeError" in line for line in lines) == 2


def test_counts_and_what_to_do(tree: Tree) -> None:
    audit = stage_dir("audit", MARX, "karl-marx")
    assert summary(standings(tree), [], {audit: 2, Path("results/elsewhere"): 9}) == [
        "",
        "5 of 38 results done (1 no-learning); 1 failed, 2 stale, 30 waiting",
        "2 verdicts failed in 1 audits and count as missing; `make retry` has the next run ask for "
        "them again",
        "Next: read the errors above; the next run tries again what failed",
    ]
    done = [s for s in standings(tree) if s.current]
    assert summary(done, [], {})[-1].startswith("Next: nothing to run")
    waits = [s for s in standings(tree) if s.word == "waiting"]
    assert summary(waits, [], {})[-1] == RUN
    stale = [s for s in standings(tree) if s.word in ("stale", "waiting")]
    assert summary(stale, [], {})[-1].startswith("Next: `why` says what changed")


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    assert tail(tmp_path / "absent.log") == []


def test_results_of_another_grid_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CONFIG forgotten: every line would say 0, and nothing why."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "plan").mkdir(parents=True)
    plan = tmp_path / "results" / "plan" / "plan.json"
    words = ["--config", str(ROOT / "config" / "micro.yaml"), "--directory", str(tmp_path)]
    warning = 'results/ here is of the grid "paper", not "micro": is --config (CONFIG=) right?'
    for name in ("paper", "micro"):
        plan.write_text(json.dumps({"name": name}))
        assert main(["status", *words]) == 0
        assert (warning in capsys.readouterr().out) == (name == "paper")


def test_the_command_on_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--config", str(ROOT / "config" / "micro.yaml"), "--directory", str(tmp_path)]
    assert main(["status", *words]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "Grid micro: 4 cells"
    assert shown[-3:] == [
        "0 of 61 results done; 61 waiting",
        "0 of 12 tables and figures are built from what is there",
        RUN,
    ]
    assert main(["status", "grpo/*/warm/*", "--cells", *words]) == 0
    shown = capsys.readouterr().out
    assert "grpo/tiny/bruce-lee/warm/r0-lex/s0" in shown and "cold" not in shown
    assert "0 of 18 results done" in shown
    assert main(["status", "grpo/9b/*", *words]) == 1
    assert "no policy of the grid matches ['grpo/9b/*']" in capsys.readouterr().err
