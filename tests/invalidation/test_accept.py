"""A harmless edit can be accepted in place of a rerun."""

import subprocess
from pathlib import Path

import pytest

from invalidation.changes import code
from invalidation.conftest import ops, planned
from invalidation.expected import TABLES

pytestmark = pytest.mark.xdist_group("invalidation")


def accept(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return ops(project, "accept", *words)


def test_an_accepted_edit_retrains_nothing_and_is_recorded(project: Path) -> None:
    code("rewards.refusal")(project)
    done = accept(project, "train_grpo", "grpo/*/r4-refusal/*", "--reason", "adds a constant")
    assert done.returncode == 0, done.stderr
    assert "accepted 4" in done.stdout
    assert planned(project).counts == TABLES
    run = (project / "results/grpo/tiny/bruce-lee/cold/r4-refusal/s0/run.json").read_text()
    assert '"reason": "adds a constant"' in run
    untouched = (project / "results/grpo/tiny/bruce-lee/cold/r0-lex/s0/run.json").read_text()
    assert '"accepted"' not in untouched


def test_accept_stamps_nothing_that_it_cannot_tell_snakemake(project: Path) -> None:
    """Else the next run would train again what was accepted."""
    code("rewards.refusal")(project)
    run = project / "results/grpo/tiny/bruce-lee/cold/r4-refusal/s0/run.json"
    before = run.read_bytes()
    locks = project / ".snakemake" / "locks"
    locks.mkdir(exist_ok=True)
    (locks / "0.input.lock").write_text("", encoding="utf-8")
    done = accept(project, "train_grpo", "--reason", "adds a constant")
    (locks / "0.input.lock").unlink()
    assert done.returncode == 1 and "this directory is locked" in done.stderr
    assert run.read_bytes() == before


def test_accept_refuses_what_is_built_on_stale_results(project: Path) -> None:
    code("rewards.refusal")(project)
    code("audit.heldout")(project)
    done = accept(project, "audit_completions", "*r4-refusal*", "--reason", "harmless")
    assert done.returncode == 1
    assert "which is stale; accept or rerun that" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train_gpro", "--reason", "x"), "no results of rule"),
        (("train_grpo", "grpo/7b/*", "--reason", "x"), "matches"),
        (("train_grpo", "--reason", " "), "give a --reason"),
    ],
)
def test_accept_refuses_bad_input(project: Path, words: tuple[str, ...], message: str) -> None:
    done = accept(project, *words)
    assert done.returncode == 1 and message in done.stderr
