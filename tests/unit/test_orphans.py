"""What no cell uses, who works, what Snakemake does not know; and that nothing else is deleted."""

import base64
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from results_tree import Tree, working_in
from support import ROOT, as_file, config, plan
from unlearning_grid.config import load_file
from unlearning_grid.errors import UserError
from unlearning_grid.ops.__main__ import main
from unlearning_grid.ops.orphans import (
    METADATA,
    Orphans,
    check_grid,
    delete,
    look,
    recorded,
    report,
    size_of,
)
from unlearning_grid.ops.standing import survey
from unlearning_grid.paths import policy_dir, stage_dir
from unlearning_grid.runtime.lease import Lease
from unlearning_grid.runtime.stage import Request, run_stage
from unlearning_grid.spec.canonical import digest_text
from unlearning_grid.spec.stages import Specs

KEPT = "grpo/tiny/bruce-lee/cold/r0-lex/s0"
DROPPED = "grpo/tiny/karl-marx/cold/r0-lex/s0"
AXES = {"sizes": ["tiny"], "inits": ["cold"], "rewards": ["r0-lex"], "seeds": [0]}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    """A grid of one target, over results of two."""
    with working_in(tmp_path, monkeypatch):
        older = Tree(**AXES, targets=["bruce-lee", "karl-marx"])
        for policy, target in ((KEPT, "bruce-lee"), (DROPPED, "karl-marx")):
            older.train(policy)
            older.evaluate(policy, target, audit=pd.DataFrame({"x": [1]}))
        yield Tree(**AXES, targets=["bruce-lee"])


def found(tree: Tree) -> Orphans:
    results = tree.results()
    return look(survey(results, tree.planned), results.plan["expected"], METADATA)


def test_results_of_a_removed_target(tree: Tree) -> None:
    """Finished or not; the judge cache and the partial tables are nobody's result."""
    for folder in ("results/judge_cache", "results/partial/tables"):
        Path(folder).mkdir(parents=True)
    Path("results/partial/manifest.json").touch()
    unfinished = stage_dir("rwku", DROPPED, "karl-marx")
    (unfinished / "work" / "0123456789abcdef").mkdir(parents=True)
    (unfinished / "work" / "0123456789abcdef" / "half").write_bytes(b"x" * 7)
    unplanned = found(tree).unplanned
    assert set(unplanned) == {
        policy_dir(DROPPED),
        stage_dir("completions", DROPPED, "karl-marx"),
        stage_dir("audit", DROPPED, "karl-marx"),
        unfinished,
    }
    assert unplanned[unfinished] == 7


def test_what_is_linked_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1000)
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").write_bytes(b"x" * 10)
    assert size_of(tmp_path) == 1010


def test_work_folders_that_no_job_resumes(tree: Tree) -> None:
    """Of a current result all but its own; of another those of older specs; none that is held."""
    current = policy_dir(KEPT) / "work"
    (current / "1111111111111111").mkdir()
    (current / "kept").mkdir()
    tree.settings[KEPT] = {}
    failed = stage_dir("audit", KEPT, "bruce-lee")
    shutil.rmtree(failed)
    for version in (1, 2):
        with pytest.raises(RuntimeError):
            tree.make(failed, {"labels.parquet": RuntimeError("no")}, version=version)
    (failed / "work" / "2222222222222222").mkdir()  # of what spec, nobody knows
    older = [p for p in failed.glob("work/*/") if not p.name.startswith("2222")]
    assert len(older) == 2
    leftover = set(found(tree).leftover)
    assert current / "1111111111111111" in leftover
    (own,) = leftover - {current / "1111111111111111"}
    lines = (failed / "work" / "attempts.jsonl").read_text(encoding="utf-8").splitlines()
    (key,) = {line.split('"key": "')[1][:16] for line in lines if tree.digest(failed) not in line}
    assert own == failed / "work" / key
    lease = Lease(own)
    lease.acquire()
    try:
        assert set(found(tree).leftover) == {current / "1111111111111111"}
    finally:
        lease.release()


def test_workers_are_seen_whether_planned_or_not(tree: Tree) -> None:
    lease = Lease(policy_dir(DROPPED) / "work" / "0123456789abcdef")
    lease.acquire()
    try:
        shown = found(tree)
        assert [worker.pid for worker in shown.workers] == [os.getpid()]
        line = f"    results/{DROPPED}: {os.uname().nodename}, process {os.getpid()}, last sign"
        assert any(text.startswith(line) for text in report(shown, 10))
        assert delete([policy_dir(DROPPED)]) == [], "nobody takes a folder from a worker"
    finally:
        lease.release()


def test_deleting_takes_the_outputs_and_empty_folders_too(tree: Tree) -> None:
    table = Path("results/tables/terminal_audit")
    tree.make(table, {"facts.json": 1})
    manifest = (table / "manifest.json").read_text(encoding="utf-8")
    moved = manifest.replace('"facts.json"', '"../terminal_audit.csv"')
    (table / "manifest.json").write_text(moved, encoding="utf-8")
    table.with_suffix(".csv").touch()
    doomed = list(found(tree).unplanned)
    assert table in doomed
    assert delete(doomed) == doomed
    assert not table.with_suffix(".csv").exists() and not Path("results/tables").exists()
    assert not Path("results/grpo/tiny/karl-marx").exists()
    assert found(tree).unplanned == {}
    assert policy_dir(KEPT).is_dir() and stage_dir("audit", KEPT, "bruce-lee").is_dir()


def test_records_of_snakemake(tmp_path: Path) -> None:
    """Its own name for a file: base64, in folders of a name's length where that is longer."""
    short, long = Path("results/a/manifest.json"), Path(f"results/{'x' * 100}/{'y' * 100}/m.json")
    spec = digest_text('{"stage":"s"}')
    assert not recorded(tmp_path / "absent", short, spec) and not recorded(tmp_path, long, spec)
    record = json.dumps({"params": [repr("{}"), repr('{"stage":"s"}')]})
    (tmp_path / base64.urlsafe_b64encode(str(short).encode()).decode()).write_text(record)
    name = base64.urlsafe_b64encode(str(long).encode()).decode()
    (tmp_path / f"@{name[:254]}").mkdir()
    (tmp_path / f"@{name[:254]}" / name[254:]).write_text(record)
    assert recorded(tmp_path, short, spec) and recorded(tmp_path, long, spec)
    assert not recorded(tmp_path, short, digest_text("another")), "of an older spec"


def test_a_result_that_an_orphan_finished_is_made_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a record Snakemake sees an edit; without, none (tests/invalidation/test_places.py)."""
    micro, edited = config("micro"), config("micro")
    edited["world"]["steps"] += 1
    file = as_file(micro, tmp_path / "before")
    folder, target = Path("results/world"), "results/world/manifest.json"
    names = ("model", "rwku", "knowledge")
    spec = Specs(load_file(file)).text("build_demo_world")
    here = tmp_path / "grid"
    here.mkdir()
    with working_in(here, monkeypatch):
        run_stage(Request(lambda: _folders, spec, {}, {n: folder / n for n in names}, folder))
        words = ["--config", str(file), "--directory", str(here)]
        assert main(["orphans", *words]) == 0
        assert "Current results that Snakemake does not know as such: 1" in capsys.readouterr().out
        assert main(["orphans", "--record", *words]) == 0
        assert "recorded 1 results" in capsys.readouterr().out
        assert plan(edited, here, [target]).rules == {"build_demo_world"}
        assert main(["orphans", *words]) == 0
        assert "Current results that Snakemake does not know as such: 0" in capsys.readouterr().out


def _folders(job: Any) -> None:
    for path in job.outputs.values():
        path.mkdir()
        (path / "x").touch()


def test_nothing_is_deleted_without_yes(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["orphans", "--delete", "--config", str(ROOT / "config" / "micro.yaml")]
    assert main(words) == 1
    shown = capsys.readouterr()
    assert f"    results/{DROPPED}: 0.0 MB" in shown.out.splitlines()
    assert "nothing deleted; look at the list, then add --yes" in shown.err
    assert policy_dir(DROPPED).is_dir()
    assert main([*words, "--yes"]) == 0
    assert not policy_dir(DROPPED).exists() and policy_dir(KEPT).is_dir()


def test_the_configuration_of_another_grid_deletes_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_grid("micro")  # nothing there
    Path("results/plan").mkdir(parents=True)
    Path("results/plan/plan.json").write_text('{"name": "micro"}', encoding="utf-8")
    check_grid("micro")
    with pytest.raises(UserError, match="results/ is of grid 'micro'.*is 'paper'; give --config"):
        check_grid("paper")


def test_a_copy_beside_a_table_takes_only_itself_along(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy = Path("results/tables/training_backup")
    copy.mkdir(parents=True)
    table = Path("results/tables/training.parquet")
    table.write_text("kept", encoding="utf-8")
    manifest = {"stage": "s", "inputs": {}, "outputs": {"../training.parquet": "digest"}}
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert delete([copy]) == [copy]
    assert table.read_text(encoding="utf-8") == "kept" and not copy.exists()
