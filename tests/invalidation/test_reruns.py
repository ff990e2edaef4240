"""Each edit replans exactly what depends on it, and nothing else: the table of docs/reruns.md."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from invalidation.changes import Edit, code, keys_of
from invalidation.conftest import planned
from invalidation.edits import EDITS
from invalidation.edits.files import ONE_TERM
from invalidation.edits.grid import ONE_MORE_SEED
from invalidation.expected import EVERYTHING
from support import ROOT, Plan
from unlearning_grid.config import load_yaml

pytestmark = pytest.mark.xdist_group("invalidation")

ROWS = [edit for edits in EDITS.values() for edit in edits]
PlannedAfter = Callable[[Edit], Plan]


@pytest.mark.parametrize("edit", ROWS, ids=lambda edit: edit.name.replace("`", ""))
def test_edit(edit: Edit, planned_after: PlannedAfter) -> None:
    assert planned_after(edit).counts == edit.planned


def test_every_row_has_a_name_of_its_own() -> None:
    assert [name for name, n in Counter(edit.name for edit in ROWS).items() if n > 1] == []


def test_every_block_of_the_configuration_has_an_edit() -> None:
    schema = load_yaml(ROOT / "workflow" / "schemas" / "config.schema.yaml")
    edited = {key.partition("/")[0] for edit in ROWS for key in keys_of(edit.change)}
    missing = set(schema["properties"]) - edited
    assert not missing, f"add an edit of {missing} to tests/invalidation/edits/"


def test_every_rule_is_planned_by_some_edit() -> None:
    planned = set().union(*(edit.planned for edit in ROWS))
    assert planned == {*EVERYTHING, "weigh_terms", "generate_base_rows"}


def test_a_new_seed_leaves_the_finished_cells_alone(planned_after: PlannedAfter) -> None:
    assert {cell["seed"] for cell in planned_after(ONE_MORE_SEED).of("train_grpo")} == {"1"}


def test_a_term_touches_the_lexical_cells_of_its_target(planned_after: PlannedAfter) -> None:
    cells = {(c["target"], c["reward"]) for c in planned_after(ONE_TERM).of("train_grpo")}
    assert cells == {("bruce-lee", "r0-lex"), ("bruce-lee", "r1-antirefusal")}


def test_the_quick_dry_run_is_the_usual_one(project: Path, planned_after: PlannedAfter) -> None:
    ONE_TERM.change(project)
    quick, usual = planned_after(ONE_TERM), planned(project)
    assert quick.jobs == usual.jobs and quick.inputs == usual.inputs


def test_a_reward_touches_its_own_cells(planned_after: PlannedAfter) -> None:
    edit = Edit("", code("rewards.refusal"), {})
    assert {cell["reward"] for cell in planned_after(edit).of("train_grpo")} == {"r4-refusal"}
