"""What `ops verify` finds, by the manifests alone, and what it has made again."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from results_tree import NO_LEARNING, Tree, working_in
from support import ROOT
from unlearning_grid.ops.__main__ import main
from unlearning_grid.ops.reopen import reopen
from unlearning_grid.ops.verify import Report, text, verify
from unlearning_grid.paths import policy_dir, stage_dir
from unlearning_grid.runtime.atomic import read_json, write_json
from unlearning_grid.runtime.lease import Lease
from unlearning_grid.tables.cells import cells_table

CELL = "grpo/tiny/bruce-lee/cold/r0-lex/s0"
OTHER = "grpo/tiny/bruce-lee/cold/r4-refusal/s0"
BASE = "base/tiny"
FRAME = pd.DataFrame({"x": [1]})
STAGES: dict[str, Any] = {"likelihoods": FRAME, "audit": FRAME, "rwku": {"mia": FRAME}}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    """Two cells and the base model, all made."""
    axes = {"sizes": ["tiny"], "targets": ["bruce-lee"], "inits": ["cold"], "seeds": [0]}
    with working_in(tmp_path, monkeypatch):
        made = Tree(**axes, rewards=["r0-lex", "r4-refusal"])
        made.train(CELL)
        made.train(OTHER)
        for policy in (BASE, CELL, OTHER):
            made.evaluate(policy, "bruce-lee", **STAGES)
        yield made


def look(tree: Tree, deep: bool = False) -> Report:
    return verify(tree.results(), tree.planned, deep)


def found(report: Report) -> dict[str, dict[str, str]]:
    """Kind -> folder -> why, of what was found only."""
    return {
        kind: {folder.as_posix(): why for folder, why in folders.items()}
        for kind, folders in report.found.items()
        if folders
    }


def at(stage: str, policy: str = CELL) -> Path:
    return stage_dir(stage, policy, "bruce-lee")


def test_a_complete_grid(tree: Tree) -> None:
    report = look(tree, deep=True)
    assert report.complete and found(report) == {}
    assert report.current == 14, "2 cells and 3 evaluations of 4 stages"
    assert report.coverage == ["2 of 2 cells trained", "3 of 3 evaluations complete"]
    assert text(report) == [
        "current         14",
        "",
        "Coverage: 2 of 2 cells trained, 3 of 3 evaluations complete.",
        "Compared with their digests, file by file: 14 results.",
        "Everything is there and current.",
    ]
    assert not any(line.startswith("Compared") for line in text(look(tree)))


def test_a_gpu_that_was_held_and_not_seen_is_told(tree: Tree) -> None:
    """A CPU build of torch on a GPU node: everything comes out, slowly, and nothing else tells."""
    for folder, gpu in ((Path("results") / CELL, None), (at("completions"), "H100")):
        run = json.loads((folder / "run.json").read_text())
        run["attempts"] = [{"event": "start", "gpus": 1.0}, {"event": "end"}]
        run["provenance"] = {"gpu": gpu}
        (folder / "run.json").write_text(json.dumps(run))
    report = look(tree)
    assert report.complete and report.without_gpu == [Path("results") / CELL]
    (line,) = [line for line in text(report) if "GPU" in line]
    assert line.startswith("Computed on the CPU though a GPU was held: 1 results; torch saw none")


def test_an_edit_makes_a_result_and_all_below_it_stale(tree: Tree) -> None:
    tree.settings[CELL] = {"max_steps": 62}
    report = look(tree)
    assert found(report) == {
        "stale": {
            f"results/{CELL}": "made from another spec",
            at("completions").as_posix(): f"made from results/{CELL}, which is not current",
            **{
                at(stage).as_posix(): f"made from {at('completions').as_posix()}, which is not "
                "current"
                for stage in ("likelihoods", "audit", "rwku")
            },
        }
    }
    assert not report.complete
    assert report.coverage == ["1 of 2 cells trained", "2 of 3 evaluations complete"]


def test_what_was_never_made_is_missing(tree: Tree) -> None:
    shutil.rmtree(at("audit"))
    assert found(look(tree)) == {"missing": {at("audit").as_posix(): ""}}


def test_a_failure_and_a_worker_are_told_apart(tree: Tree) -> None:
    shutil.rmtree(policy_dir(CELL))
    shutil.rmtree(policy_dir(OTHER))
    with pytest.raises(RuntimeError):
        tree.train(CELL, RuntimeError("out of\nmemory"))
    lease = Lease(policy_dir(OTHER) / "work" / "0123456789abcdef")
    lease.acquire()
    try:
        report = look(tree)
    finally:
        lease.release()
    assert report.found["failed"] == {policy_dir(CELL): "RuntimeError: out of\nmemory"}
    assert list(report.found["running"]) == [policy_dir(OTHER)]
    assert f"    results/{CELL}: RuntimeError: out of memory" in text(report), "one line"


def test_damage_is_seen(tree: Tree) -> None:
    """A missing or emptied file at once; a changed one by --deep only."""
    (at("audit") / "labels.parquet").unlink()
    (at("likelihoods") / "mia.parquet").write_bytes(b"")
    changed = at("completions", OTHER) / "completions.parquet"
    changed.write_bytes(changed.read_bytes()[:-1] + b"?")
    damaged = {
        at("audit").as_posix(): "labels.parquet is missing",
        at("likelihoods").as_posix(): "mia.parquet is empty",
    }
    assert found(look(tree)) == {"damaged": damaged}
    differs = {at("completions", OTHER).as_posix(): "completions.parquet differs from its digest"}
    assert found(look(tree, deep=True)) == {"damaged": damaged | differs}


def test_a_run_json_of_another_run_is_seen(tree: Tree) -> None:
    """Only the spec stands in run.json: copied from elsewhere, it would vouch for any files."""
    path = policy_dir(CELL) / "run.json"
    write_json(path, (read_json(path) or {}) | {"key": "0" * 16})
    assert found(look(tree)) == {
        "damaged": {f"results/{CELL}": "manifest.json and run.json are not of one run"}
    }


def test_what_was_accepted_is_said_and_complete(tree: Tree) -> None:
    tree.settings[CELL] = {"renamed": True}
    path = policy_dir(CELL) / "run.json"
    run = read_json(path) or {}
    new = tree.digest(policy_dir(CELL))
    entry = {"from": run["spec_digest"], "to": new, "reason": "renames a variable"}
    write_json(path, run | {"spec_digest": new, "accepted": [entry]})
    report = look(tree, deep=True)
    assert report.complete
    assert "Accepted: 1 x train_grpo, 'renames a variable'." in text(report)


def test_missing_verdicts_and_cells_without_learning_are_counted(tree: Tree) -> None:
    shutil.rmtree(policy_dir(OTHER))
    tree.train(OTHER, NO_LEARNING)
    path = at("audit", BASE) / "run.json"
    write_json(path, (read_json(path) or {}) | {"facts": {"failed_verdicts": 3}})
    report = look(tree)
    assert report.no_learning == [policy_dir(OTHER)]
    assert report.verdicts == {at("audit", BASE): 3}
    assert "Missing verdicts: 3 in 1 audits; `ops retry` asks again." in text(report)


def test_reopening_takes_the_manifests_of_a_result_and_of_all_made_from_it(tree: Tree) -> None:
    """Down to the tables, whose files go: else Snakemake finds every file that it asks for."""
    table = Path("results/tables/heldout_audit")
    tree.make(table, {"sentences.json": 1}, [at("audit"), at("audit", OTHER)])
    other = Path("results/tables/training")
    tree.make(other, {"facts.json": 1}, [policy_dir(OTHER)])
    for folder in (table, other):
        folder.with_suffix(".parquet").touch()
    planned = [Path(folder) for folder, _, _ in tree.planned]
    opened = reopen([at("completions")], planned)
    assert opened == [at(s) for s in ("completions", "likelihoods", "audit", "rwku")] + [table]
    assert not any((folder / "manifest.json").exists() for folder in opened)
    assert (at("completions") / "completions.parquet").is_file()
    assert not table.with_suffix(".parquet").exists()
    assert other.with_suffix(".parquet").exists() and (other / "manifest.json").exists()


def test_what_a_worker_holds_is_not_reopened(tree: Tree) -> None:
    planned = [Path(folder) for folder, _, _ in tree.planned]
    lease = Lease(at("completions") / "work" / "0123456789abcdef")
    lease.acquire()
    try:
        assert reopen([at("completions")], planned) == []
    finally:
        lease.release()


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is there: everything of the micro grid is missing, and the exit status says so."""
    monkeypatch.chdir(tmp_path)
    words = ["--config", str(ROOT / "config" / "micro.yaml"), "--directory", str(tmp_path)]
    assert main(["verify", "grpo/*", *words]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "micro: 4 results planned",
        "",
        "current          0",
        "missing          4  not made yet",
        *(f"    results/grpo/tiny/bruce-lee/{init}/{reward}/s0" for init, reward in GRID),
        "",
        "Coverage: 0 of 4 cells trained.",
        "Not complete.",
    ]
    assert main(["verify", "none/*", *words]) == 1
    assert "no planned folder below results/ matches ['none/*']" in capsys.readouterr().err


GRID = [(init, reward) for init in ("cold", "warm") for reward in ("r0-lex", "r2-rubric")]


def test_the_command_on_a_complete_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 0 when all that was asked for is there; a shorter list than --all."""
    from unlearning_grid.config import load_file
    from unlearning_grid.runtime.stage import Request, run_stage
    from unlearning_grid.spec.stages import Specs

    config = ROOT / "config" / "micro.yaml"
    folder = Path("results/data/bruce-lee/split")
    spec = Specs(load_file(config)).text("split_target", target="bruce-lee")
    with working_in(tmp_path, monkeypatch):
        outputs = {"split": folder / "split.json"}
        run_stage(Request(lambda: _writes_json, spec, {}, outputs, folder))
        words = ["--config", str(config), "--directory", str(tmp_path)]
        assert main(["verify", "data/*/split", "--deep", *words]) == 0
        assert "Everything is there and current." in capsys.readouterr().out
        assert main(["verify", *words]) == 1
        shown = capsys.readouterr().out.splitlines()
        assert sum(line.startswith("    results/") for line in shown) == 5
        assert "    … and 68 more (--all)" in shown


def _writes_json(job: Any) -> None:
    job.outputs["split"].write_text(json.dumps([1]))


def test_what_was_accepted_is_shown_by_every_row_that_depends_on_it(tree: Tree) -> None:
    """An audit's edit by its own cell; a training's by its cell too, though the audit is newer."""
    for folder, reason in ((policy_dir(CELL), "renames a variable"), (at("audit"), "a log line")):
        path = folder / "run.json"
        entry = {"from": "a", "to": "b", "reason": reason}
        write_json(path, (read_json(path) or {}) | {"accepted": [entry]})
    shown = cells_table(tree.results()).set_index("policy")["accepted"]
    assert shown[CELL] == "stub: renames a variable; stub: a log line"
    assert pd.isna(shown[OTHER])
    assert tree.results().accepted(at("audit")) == ["stub: renames a variable", "stub: a log line"]
    assert tree.results().accepted(at("audit", OTHER)) == []
