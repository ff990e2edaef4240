"""Sinks: a run's metrics have one place, whatever is asked for is there or refused by name."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from unlearning_grid.errors import UserError
from unlearning_grid.runtime.job import Job
from unlearning_grid.runtime.sinks import check_sink, prepare

NAMES = ("WANDB_DIR", "WANDB_NAME", "WANDB_PROJECT", "WANDB_RESUME", "WANDB_RUN_ID")
CELL = "grpo/tiny/bruce-lee/cold/r0-lex/s0"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (*NAMES, "TENSORBOARD_LOGGING_DIR"):
        monkeypatch.setenv(name, "x")  # so that what the code sets is taken back
        monkeypatch.delenv(name)


def job(report_to: str) -> Job:
    work = Path("results", CELL, "work", "0123456789abcdef")
    return Job({}, {}, {}, work, report_to=report_to)


def test_none_needs_nothing_and_sets_nothing():
    before = dict(os.environ)
    assert prepare(job("none")) == "none"
    assert dict(os.environ) == before and not list(Path().iterdir())


def test_tensorboard_gets_a_folder_per_run():
    assert prepare(job("tensorboard")) == "tensorboard"
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == f"logs/tensorboard/{CELL}/0123456789abcdef"


def test_wandb_gets_a_name_and_goes_on_in_the_same_run(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package/wandb.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "package"))
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert prepare(job("wandb")) == "wandb"
    assert {name: os.environ[name] for name in NAMES} == {
        "WANDB_DIR": "logs",
        "WANDB_NAME": CELL,
        "WANDB_PROJECT": "unlearning-grid",
        "WANDB_RESUME": "allow",
        "WANDB_RUN_ID": "0123456789abcdef",
    }
    assert Path("logs").is_dir()
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    prepare(job("wandb"))
    assert os.environ["WANDB_PROJECT"] == "mine"


@pytest.mark.parametrize("there", [None, ModuleType("wandb")], ids=["absent", "a mere folder"])
def test_a_package_that_is_not_there_is_named_with_the_resource_and_the_fix(monkeypatch, there):
    monkeypatch.setitem(sys.modules, "wandb", there)
    with pytest.raises(UserError, match="report_to: wandb is not installed .* install it there"):
        prepare(job("wandb"))


@pytest.mark.parametrize("value", ["mlflow", "", None, True, "TensorBoard"])
def test_another_name_is_refused(value):
    with pytest.raises(UserError, match="resource report_to: .* none, tensorboard, wandb"):
        check_sink(value)
