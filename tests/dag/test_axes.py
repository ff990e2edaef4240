"""What an edit of a grid's axes adds and takes away, and that it touches nothing else."""

from functools import cache
from pathlib import Path

import pytest

from support import PLANNED, Plan, config, job, plan

pytestmark = pytest.mark.xdist_group("dag")


@cache
def _variant(directory: Path, **grid: tuple) -> Plan:
    changed = config("demo")
    changed["grid"] |= {
        key: [dict(v) if isinstance(v, tuple) else v for v in values]
        for key, values in grid.items()
    }
    return plan(changed, directory)


def test_an_exclusion_leaves_out_exactly_the_cells_it_matches(demo: Plan, directory: Path) -> None:
    rule = (("init", "warm"), ("reward", "r4-refusal"))
    found = _variant(directory, exclude=(rule,))
    gone = demo.jobs - found.jobs
    assert found.jobs < demo.jobs
    assert {name for name, _ in gone} == {
        "train_grpo",
        "generate_completions",
        "sample_completions",
        "audit_completions",
        "audit_samples",
        "audit_again",
        "audit_rollouts",
        "score_likelihoods",
        "evaluate_rwku",
    }
    assert len(gone) == 2 * 9  # two targets: the cell and its eight evaluation stages
    for name, wildcards in gone:
        facts = dict(wildcards)
        init, reward = (
            (facts["init"], facts["reward"])
            if name == "train_grpo"
            else facts["policy"].split("/")[3:5]
        )
        assert (init, reward) == ("warm", "r4-refusal")


def test_without_warm_cells_there_is_no_warm_up_and_no_broad_answer(directory: Path) -> None:
    by_rule = _variant(directory, exclude=((("init", "warm"),),))
    by_axis = _variant(directory, inits=("cold",))
    assert by_rule.jobs == by_axis.jobs
    assert not {"train_warmup", "write_broad_answers"} & by_rule.rules
    assert by_rule.counts["train_grpo"] == 8
    assert by_rule.counts["generate_completions"] == 2 + 8


def test_a_second_seed_adds_its_own_jobs_and_touches_no_other(demo: Plan, directory: Path) -> None:
    found = _variant(directory, seeds=(0, 7))
    added = found.jobs - demo.jobs
    assert demo.jobs <= found.jobs
    counts = {rule: sum(name == rule for name, _ in added) for rule, _ in added}
    assert counts == {
        "train_warmup": 2,
        "train_grpo": 16,
        "generate_completions": 18,
        "sample_completions": 18,
        "audit_completions": 18,
        "audit_samples": 18,
        "audit_again": 18,
        "audit_rollouts": 16,
        "score_likelihoods": 18,
        "evaluate_rwku": 18,
    }
    for _, wildcards in added:
        facts = dict(wildcards)
        assert facts.get("seed") == "7" or facts["policy"].endswith("/s7")
    collecting = {job(rule) for rule in PLANNED}
    for entry in demo.jobs - collecting:
        assert found.inputs[entry] == demo.inputs[entry], entry


def test_a_second_target_or_reward_touches_no_cell_of_the_first(
    demo: Plan, directory: Path
) -> None:
    fewer = _variant(directory, targets=("bruce-lee",), rewards=("r0-lex", "r2-rubric"))
    assert fewer.jobs < demo.jobs
    for entry in fewer.jobs - {job(rule) for rule in PLANNED}:
        assert fewer.inputs[entry] == demo.inputs[entry], entry
