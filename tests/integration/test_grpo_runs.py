"""What a GRPO run keeps, when it stops, and how it goes on, trained in this process."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from training_job import built, grpo_job, short
from unlearning_grid.errors import UserError
from unlearning_grid.runtime.job import Job
from unlearning_grid.train import grpo

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.usefixtures("one_thread")]


def outcome(job: Job) -> dict[str, Any]:
    return json.loads(job.outputs["outcome"].read_text())


def changed_trainer(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let `change(run, trainer)` at every trainer that is built from now on."""
    original = grpo.Run.build_trainer

    def build(run: grpo.Run) -> Any:
        trainer = original(run)
        change(run, trainer)
        return trainer

    monkeypatch.setattr(grpo.Run, "build_trainer", build)


def test_a_seed_changes_order_samples_and_the_fresh_adapter_and_nothing_else(
    micro: Path, tmp_path: Path
) -> None:
    runs = {seed: built(grpo_job(micro, tmp_path / str(seed), seed=seed)) for seed in (0, 1)}
    arguments = [trainer.args.to_dict() for _, trainer in runs.values()]
    changed = {name for name, value in arguments[0].items() if value != arguments[1][name]}
    assert changed == {"seed", "output_dir"}  # the folder is the test's
    fresh = [
        {n: w.detach() for n, w in trainer.model.named_parameters() if w.requires_grad}
        for _, trainer in runs.values()
    ]
    assert any(not torch.equal(w, fresh[1][n]) for n, w in fresh[0].items() if "lora_A" in n)
    order = [
        [row["prompt_id"] for batch in trainer.get_train_dataloader() for row in batch]
        for _, trainer in runs.values()
    ]
    assert sorted(set(order[0])) != order[0] and order[0] != order[1]
    rows = [[row["prompt_id"] for row in run.rows] for run, _ in runs.values()]
    assert rows[0] == rows[1]


def test_kept_adapters_are_those_before_the_end_in_the_models_precision(
    micro: Path, tmp_path: Path
) -> None:
    settings = short(max_steps=4, keep_adapters_every=2)
    job = grpo_job(micro, tmp_path, **settings, model={"build": "world", "dtype": "bfloat16"})
    grpo.train(job)
    kept = [path.name for path in job.outputs["adapters"].iterdir()]
    assert kept == ["step-000002"]
    weights = load_file(job.outputs["adapters"] / "step-000002" / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert any(weight.any() for name, weight in weights.items() if "lora_B" in name)


def test_an_outage_in_the_first_rollout_of_an_epoch_resumes_to_the_same_bytes(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the loader draws from the random states, too. Epochs of 3 rollouts, saved every 4."""
    settings = short(max_steps=10, save_steps=4)
    whole = grpo_job(micro, tmp_path / "whole", **settings)
    grpo.train(whole)
    job = grpo_job(micro, tmp_path / "broken", **settings)

    def fail_once(run: grpo.Run, trainer: Any) -> None:
        reward = trainer.reward_funcs[0].reward
        score = reward.score

        def failing(*args: Any) -> Any:
            if trainer.state.global_step == 6:
                raise UserError("the judge does not answer")
            return score(*args)

        reward.score = failing

    changed_trainer(monkeypatch, fail_once)
    with pytest.raises(UserError, match="does not answer"):
        grpo.train(job)
    monkeypatch.undo()
    assert (job.work / "checkpoints/checkpoint-6/complete.json").exists()
    grpo.train(job)
    for name in ("adapter/adapter_model.safetensors", "rollouts.parquet", "metrics.parquet"):
        one, two = (j.outputs["adapter"].parent / name for j in (whole, job))
        assert one.read_bytes() == two.read_bytes(), name


@pytest.mark.parametrize(
    ("timing", "steps", "rollouts"), [("before-update", 6, 3), ("paper", 7, 4)]
)
def test_the_no_learning_rule_stops_where_it_says(
    micro: Path, tmp_path: Path, timing: str, steps: int, rollouts: int
) -> None:
    """Three rollouts an epoch; with a threshold of 1 every run counts as one without signal."""
    rule = {"enabled": True, "threshold": 1.0, "timing": timing}
    job = grpo_job(micro, tmp_path, max_steps=8, save_steps=2, no_learning=rule)
    assert grpo.train(job) == {"status": "no-learning", "steps": steps, "processes": 1}
    found = outcome(job)
    assert (found["steps"], found["rollouts"]) == (steps, rollouts)
    assert len(found["first_epoch_active_rates"]) == 3
    mean = sum(found["first_epoch_active_rates"]) / 3
    assert found["first_epoch_active_rate"] == pytest.approx(mean) and mean > 0
    rows: Any = pd.read_parquet(job.outputs["rollouts"])
    assert rows["rollout"].nunique() == rollouts and not rows["completion_id"].duplicated().any()
    checkpoint = max((job.work / "checkpoints").glob("checkpoint-*"))
    logged = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    rates = [line["active_group_rate"] for line in logged if "active_group_rate" in line]
    assert rates[:3] == pytest.approx(found["first_epoch_active_rates"]), "in the checkpoint too"


def test_a_run_goes_on_in_smaller_micro_batches_after_it_was_stopped(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one does after an out-of-memory error: same work folder, same result up to rounding."""
    settings = short(max_steps=8, save_steps=4)
    whole = grpo_job(micro, tmp_path / "whole", **settings)
    grpo.train(whole)
    job = grpo_job(micro, tmp_path / "broken", **settings)

    def run_out_of_memory(run: grpo.Run, trainer: Any) -> None:
        step = trainer.training_step

        def fail(*args: Any, **words: Any) -> Any:
            if trainer.state.global_step == 5:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return step(*args, **words)

        trainer.training_step = fail

    changed_trainer(monkeypatch, run_out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        grpo.train(job)
    monkeypatch.undo()
    again = grpo_job(micro, tmp_path / "again", **settings, micro_batch_size=16)
    again.work.rmdir()
    job.work.rename(again.work)
    grpo.train(again)
    one, two = (pd.read_parquet(j.outputs["rollouts"]) for j in (whole, again))
    assert one["completion"].tolist() == two["completion"].tolist()
    one, two = (
        load_file(j.outputs["adapter"] / "adapter_model.safetensors") for j in (whole, again)
    )
    assert max((one[n] - two[n]).abs().max() for n in one) < 1e-4
    assert any(not torch.equal(one[n], two[n]) for n in one), "16 at a time round differently"
