"""Reopening audits with failed verdicts."""

import pandas as pd
import pytest

from results_tree import Tree, working_in
from unlearning_grid.ops.retry import failed_verdicts, reopen
from unlearning_grid.paths import stage_dir
from unlearning_grid.runtime.atomic import read_json, write_json
from unlearning_grid.tables.results import Results


@pytest.fixture
def tree(tmp_path, monkeypatch):
    grid = {"targets": ["a", "b"], "inits": ["cold"], "rewards": ["r0-lex"], "seeds": [0]}
    made = Tree(sizes=["tiny"], **grid)
    with working_in(tmp_path, monkeypatch):
        for target in ("a", "b"):
            made.evaluate("base/tiny", target, audit=pd.DataFrame({"x": [1]}))
        yield made


def test_only_audits_with_failed_verdicts_are_reopened(tree):
    assert failed_verdicts(tree.plan) == {} == reopen(tree.plan)
    folder = stage_dir("audit", "base/tiny", "b")
    run = read_json(folder / "run.json") or {}
    write_json(folder / "run.json", run | {"facts": {"failed_verdicts": 3}})
    assert failed_verdicts(tree.plan) == {folder: 3} == reopen(tree.plan)
    assert not (folder / "manifest.json").exists()
    assert not list(folder.glob("work/*/result")), "or the next run would publish it again"
    assert (folder / "labels.parquet").is_file()
    other = stage_dir("audit", "base/tiny", "a")
    assert Results(tree.plan).state(other).status == "current"
    assert reopen(tree.plan) == {}
