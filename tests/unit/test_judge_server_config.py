"""Judges served inside the cluster: what a configuration may say, and what makes them another."""

from typing import Any

import pytest

from config_edits import problems_of, put
from judge_server import judge_block
from support import config
from unlearning_grid.checks.served import served
from unlearning_grid.config import load
from unlearning_grid.remote.requests import build, request_key
from unlearning_grid.spec.canonical import canonical
from unlearning_grid.spec.stages import Specs

REVISION = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40
CELL = {"size": "7b", "target": "karl-marx", "init": "cold", "seed": 1234, "reward": "r2-rubric"}


def judge(**changes: Any) -> dict[str, Any]:
    return {
        "provider": "openai",
        "api": "chat",
        "base_url": "cluster:big",
        "model": "org/judge",
        "revision": REVISION,
        "prompt_file": "config/prompts/reworded-v1/rubric.txt",
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"revision": None},
            "judges.reward.revision: missing; name the commit of the model that is served.",
        ),
        (
            {"base_url": "http://node7:8000/v1"},
            "judges.reward.revision: for `base_url: cluster:NAME` alone; remove it.",
        ),
        (
            {"base_url": "cluster:"},
            'judges.reward.base_url: "" is no name; letters, digits, - and _ are.',
        ),
        (
            {"base_url": "cluster:../up"},
            'judges.reward.base_url: "../up" is no name; letters, digits, - and _ are.',
        ),
    ],
)
def test_a_server_is_named_with_its_commit(changes: dict[str, Any], problem: str) -> None:
    assert problems_of("config", put("judges/reward", judge(**changes))) == [problem]


def test_one_server_serves_one_model() -> None:
    edits = [put("judges/reward", judge()), put("judges/second", judge(revision=OTHER))]
    assert problems_of("config", *edits) == [
        "judges.second.base_url: big serves another model for judges.reward; one server serves "
        "one model at one commit."
    ]


def specs(**changes: Any) -> Specs:
    raw = config("config")
    raw["judges"]["reward"] = judge(**changes)
    return Specs(load(raw))


def key(made: Specs) -> str:
    """Key of a question in the cache."""
    return request_key(build(judge_block() | made.judge("reward"), "Judge it.", {"a": 1}), 0)


def test_its_identity_is_its_name_and_what_it_serves() -> None:
    """Nothing of where it runs; a commit is another judge for specs, requests and the cache."""
    made = specs()
    block = made.spec("train_grpo", **CELL)["settings"]["reward"]["judge"]
    assert (block["base_url"], block["model"]) == ("cluster:big", "org/judge@0123456789ab")
    for changes in ({"revision": OTHER}, {"model": "org/other"}, {"base_url": "cluster:small"}):
        other = specs(**changes)
        assert key(other) != key(made)
        assert other.digest("train_grpo", **CELL) != made.digest("train_grpo", **CELL)
    assert served(load(config("config") | {"judges": {"reward": judge(), **rest()}})["judges"]) == {
        "big": ("org/judge", REVISION)
    }


def rest() -> dict[str, Any]:
    return {name: block for name, block in config("config")["judges"].items() if name != "reward"}


def test_a_judge_elsewhere_has_the_spec_that_it_had() -> None:
    made = Specs(load(config("config")))
    assert "revision" not in canonical(made.judge("reward"))
    assert made.judge("reward")["model"] == "gpt-5.4-nano"
