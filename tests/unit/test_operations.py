"""Operational settings leave the spec and reach the job; everything else stays in the spec."""

import json
import os
from copy import deepcopy
from pathlib import Path

import pytest

from support import ROOT
from unlearning_grid.config import load_file
from unlearning_grid.errors import UserError
from unlearning_grid.runtime.job import Job, share_gpu
from unlearning_grid.spec.operations import OPERATIONAL, combine, divide
from unlearning_grid.spec.stages import Specs

JUDGE = {"model": "m", "key_variable": "MY_KEY"}
SETTINGS = {
    "save_steps": 10,
    "micro_batch_size": None,
    "gradient_checkpointing": True,
    "max_missing_share": 0.1,
    "beta": 0.04,
    "reward": {"name": "r2-rubric", "judge": JUDGE},
}


def test_settings_are_divided_at_their_place() -> None:
    before = deepcopy(SETTINGS)
    facts, operations = divide("train_grpo", SETTINGS)
    assert facts == {"beta": 0.04, "reward": {"name": "r2-rubric", "judge": {"model": "m"}}}
    assert operations == {
        "save_steps": 10,
        "micro_batch_size": None,
        "gradient_checkpointing": True,
        "max_missing_share": 0.1,
        "reward": {"judge": {"key_variable": "MY_KEY"}},
    }
    assert combine(facts, operations) == before == SETTINGS


def test_what_is_not_there_is_not_made_up() -> None:
    assert divide("train_grpo", {"reward": {"judge": None}}) == ({"reward": {"judge": None}}, {})
    assert divide("split_target", {"save_steps": 1}) == ({"save_steps": 1}, {})


def test_a_job_sees_all_settings() -> None:
    facts, operations = divide("train_grpo", SETTINGS)
    spec = {"settings": facts, "cell": {}}
    job = Job(spec=spec, inputs={}, outputs={}, work=Path(), operations=operations)
    assert job.settings == SETTINGS


CELLS = {
    "write_broad_answers": {"target": "bruce-lee"},
    "train_warmup": {"size": "0.5b", "target": "bruce-lee", "seed": "1234"},
    "train_grpo": {
        "size": "0.5b",
        "target": "bruce-lee",
        "init": "cold",
        "reward": "r2-rubric",
        "seed": "1234",
    },
    "generate_base_rows": {"size": "0.5b"},
    "sample_completions": {"policy": "base/0.5b", "target": "bruce-lee"},
    "audit_samples": {"judge": "audit", "policy": "base/0.5b", "target": "bruce-lee"},
    "generate_completions": {"policy": "base/0.5b", "target": "bruce-lee"},
    "score_likelihoods": {"policy": "base/0.5b", "target": "bruce-lee"},
    "audit_completions": {"policy": "base/0.5b", "target": "bruce-lee"},
    "audit_again": {
        "judge": "audit",
        "replicate": "1",
        "policy": "base/0.5b",
        "target": "bruce-lee",
    },
    "audit_rollouts": {
        "policy": "grpo/0.5b/bruce-lee/cold/r2-rubric/s1234",
        "target": "bruce-lee",
    },
    "write_plan": {},
}


@pytest.mark.parametrize("stage", OPERATIONAL)
def test_each_listed_setting_is_one_of_the_papers_grid(stage: str) -> None:
    """A setting that is renamed must be renamed here, or it would enter the specs again."""
    specs = Specs(load_file(ROOT / "config" / "config.yaml"))
    given = json.loads(specs.operations(stage, **CELLS[stage]))
    unused = {"vllm_memory_share"} if stage == "train_grpo" else set()  # with grpo.use_vllm only
    assert set(_places(given, OPERATIONAL[stage])) == set(OPERATIONAL[stage]) - unused
    text = specs.text(stage, **CELLS[stage])
    for place in OPERATIONAL[stage]:
        assert f'"{place.rpartition(".")[2]}":' not in text


def _places(operations: dict, listed: tuple[str, ...]) -> list[str]:
    found = []
    for place in listed:
        inside = operations
        for block in place.split("."):
            if block not in inside:
                break
            inside = inside[block]
        else:
            found.append(place)
    return found


def test_a_job_that_shares_its_gpu_limits_torchs_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    share_gpu(1)
    assert "PYTORCH_ALLOC_CONF" not in os.environ
    share_gpu(4)
    assert os.environ["PYTORCH_ALLOC_CONF"] == "per_process_memory_fraction:0.2500"
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    share_gpu(3)
    assert os.environ["PYTORCH_ALLOC_CONF"] == (
        "expandable_segments:True,per_process_memory_fraction:0.3333"
    )
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:native")
    share_gpu(2)
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == (
        "backend:native,per_process_memory_fraction:0.5000"
    )


@pytest.mark.parametrize("jobs", [0, -1, "2", 1.5, True, None])
def test_a_share_that_is_no_number_of_jobs_is_refused(jobs: object) -> None:
    with pytest.raises(UserError, match="resource gpu_share: .* set it to how many share one GPU"):
        share_gpu(jobs)
