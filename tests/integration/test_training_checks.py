"""Each check of a training run: an induced fault sets it off, a healthy run does not."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import PreTrainedModel, TrainerCallback

from training_job import built, grpo_job, short
from unlearning_grid.errors import UserError
from unlearning_grid.models import load
from unlearning_grid.runtime.job import Job
from unlearning_grid.runtime.lease import Lease, LeaseLost
from unlearning_grid.train import grpo, lora
from unlearning_grid.train.checks import check_trainable

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.usefixtures("one_thread")]


def outcome(job: Job) -> dict[str, Any]:
    return json.loads(job.outputs["outcome"].read_text())


def adapter(job: Job) -> dict[str, torch.Tensor]:
    return load_file(job.outputs["adapter"] / "adapter_model.safetensors")


@pytest.mark.parametrize("init", ["cold", "warm"])
def test_a_healthy_run_is_silent_and_the_same_seed_gives_the_same_bytes(
    micro: Path, tmp_path: Path, init: str
) -> None:
    """Checkpointing of activations trades time for memory and nothing else."""
    jobs = [grpo_job(micro, tmp_path / n, init, **short()) for n in ("one", "two")]
    for job in jobs:
        assert grpo.train(job)["status"] == "learned"
    one, two = (job.outputs["adapter"] / "adapter_model.safetensors" for job in jobs)
    assert one.read_bytes() == two.read_bytes()
    assert outcome(jobs[0])["kl_first"] == 0.0
    assert (
        outcome(jobs[0])["kl_reference"] == {"cold": "base model", "warm": "warm-up adapter"}[init]
    )
    assert sorted(path.name for path in one.parent.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    saving = grpo_job(micro, tmp_path / "saving", init, **short(gradient_checkpointing=True))
    grpo.train(saving)
    for name, weight in adapter(saving).items():
        torch.testing.assert_close(weight, adapter(jobs[0])[name], atol=1e-5, rtol=0)


def test_an_adapter_loaded_for_inference_is_refused(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface/trl #6700: finite loss, plausible gradient norm, an optimizer without weights."""
    monkeypatch.setattr(
        grpo, "with_adapter", lambda model, path, trainable: load.with_adapter(model, path)
    )
    with pytest.raises(RuntimeError, match="no parameter is trainable"):
        grpo.train(grpo_job(micro, tmp_path, "warm", **short()))


def test_more_than_the_adapter_trainable_is_refused(micro: Path, tmp_path: Path) -> None:
    _, trainer = built(grpo_job(micro, tmp_path, **short()))
    check_trainable(trainer.model)
    base = dict(trainer.model.named_parameters())["base_model.model.model.norm.weight"]
    base.requires_grad_(True)
    with pytest.raises(RuntimeError, match="beside the adapter.*norm"):
        check_trainable(trainer.model)
    base.requires_grad_(False)
    trainer.model.half()
    with pytest.raises(RuntimeError, match="not in float32"):
        check_trainable(trainer.model)


def test_a_second_adapter_stacked_on_the_first_is_refused(micro: Path, tmp_path: Path) -> None:
    _, trainer = built(grpo_job(micro, tmp_path, "warm", **short()))
    check_trainable(trainer.model)
    trainer.model.add_adapter("new", trainer.model.peft_config["default"])
    with pytest.raises(RuntimeError, match=r"adapters \['default', 'new', 'ref'\]"):
        check_trainable(trainer.model)


def test_the_bare_model_as_reference_of_a_warm_start_is_an_error_after_one_step(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface/trl #3194, PR #6621: the reference adapter is there and has no effect."""
    whole = grpo.check_trainable

    def without_reference(model: PeftModel) -> None:
        whole(model)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B.ref" in name:
                    weight.zero_()

    monkeypatch.setattr(grpo, "check_trainable", without_reference)
    job = grpo_job(micro, tmp_path, "warm", **short())
    with pytest.raises(RuntimeError, match=r"KL to the reference \(warm-up adapter\) is 0\.\d+"):
        grpo.train(job)
    assert not list((job.work / "checkpoints").glob("checkpoint-*"))


def changed_trainer(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let `change(run, trainer)` at every trainer that is built from now on."""
    original = grpo.Run.build_trainer

    def build(run: grpo.Run) -> Any:
        trainer = original(run)
        change(run, trainer)
        return trainer

    monkeypatch.setattr(grpo.Run, "build_trainer", build)


def test_checkpointed_blocks_without_input_gradients_are_an_error(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """locuslab/open-unlearning #178: reentrant blocks are cut off without input gradients."""

    def cut(run: grpo.Run, trainer: Any) -> None:
        trainer.model.disable_input_require_grads()
        trainer.args.gradient_checkpointing_kwargs = {"use_reentrant": True}

    monkeypatch.setattr(PreTrainedModel, "enable_input_require_grads", lambda *_, **__: None)
    changed_trainer(monkeypatch, cut)
    with pytest.raises(RuntimeError, match="does not require grad|gradient is 0 at step 1"):
        grpo.train(grpo_job(micro, tmp_path, **short(gradient_checkpointing=True)))


def test_a_loss_that_does_not_reach_the_adapter_is_an_error_after_one_step(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The silent form of it: backward runs, and every gradient is 0."""

    def detach(run: grpo.Run, trainer: Any) -> None:
        compute = trainer._compute_loss

        def detached(model: Any, inputs: Any) -> torch.Tensor:
            trained = [w for w in model.parameters() if w.requires_grad]
            return compute(model, inputs).detach() + 0.0 * sum(w.sum() for w in trained)

        trainer._compute_loss = detached

    changed_trainer(monkeypatch, detach)
    with pytest.raises(RuntimeError, match="gradient is 0 at step 1 although rewards differ"):
        grpo.train(grpo_job(micro, tmp_path, **short()))


def test_a_gradient_that_is_not_finite_is_an_error(micro: Path, tmp_path: Path) -> None:
    run, trainer = built(grpo_job(micro, tmp_path, **short()))
    compute = trainer._compute_loss
    trainer._compute_loss = lambda model, inputs: compute(model, inputs) * math.nan
    with pytest.raises(RuntimeError, match="gradient norm is nan at step 1"):
        trainer.train()


def test_updates_that_do_not_reach_the_policy_are_an_error(micro: Path, tmp_path: Path) -> None:
    """An optimizer that was given copies of the weights: all its numbers look fine."""
    _, trainer = built(grpo_job(micro, tmp_path, **short()))
    trainer.create_optimizer()
    trainer.optimizer.step = lambda *_, **__: None
    with pytest.raises(RuntimeError, match="every importance ratio is 1 at step 2"):
        trainer.train()


def test_a_turn_that_goes_on_after_an_end_token_is_an_error(micro: Path, tmp_path: Path) -> None:
    """A model with two end tokens and a trainer that knows one."""
    _, trainer = built(grpo_job(micro, tmp_path, **short()))
    tokenizer = trainer.processing_class
    second = tokenizer.encode(" was", add_special_tokens=False)[-1]
    trainer.ends = [*trainer.ends, second]
    with pytest.raises(RuntimeError, match=f"after end-of-turn token {second}"):
        trainer.train()


def test_every_end_token_of_the_model_ends_a_turn_and_is_trained(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = grpo.load_model
    second: list[int] = []

    def two_ends(where: Any) -> Any:
        model = original(where)
        tokenizer = load.load_tokenizer(where)
        second.append(tokenizer.encode(" was", add_special_tokens=False)[-1])
        model.generation_config.eos_token_id = [tokenizer.eos_token_id, second[0]]
        return model

    monkeypatch.setattr(grpo, "load_model", two_ends)
    run, trainer = built(grpo_job(micro, tmp_path, **short()))
    batches = []
    generate = trainer._generate_and_score_completions

    def kept(inputs: Any) -> Any:
        batches.append(generate(inputs))
        return batches[-1]

    trainer._generate_and_score_completions = kept
    trainer.train()
    ids, mask = batches[0]["completion_ids"], batches[0]["completion_mask"]
    assert set(trainer.ends) == {trainer.processing_class.eos_token_id, *second}
    last = [row[used.bool()][-1].item() for row, used in zip(ids, mask, strict=True)]
    assert last.count(second[0]) > 5, "some turns end at the second end token, inside the mask"
    assert ((ids == second[0]).sum(dim=1) <= 1).all()
    reasons = run.store.collect(1)["finish_reason"]
    assert (reasons == ["stop" if token in trainer.ends else "length" for token in last]).all()


class StopEarly(TrainerCallback):
    """What a data loader does that believes it is exhausted: training ends, without an error."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == 2


def test_a_run_that_ends_early_without_its_rule_is_an_error(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl-project/verl #7401: exit status 0 and nothing trained."""
    changed_trainer(monkeypatch, lambda run, trainer: trainer.add_callback(StopEarly()))
    job = grpo_job(micro, tmp_path, **short(max_steps=4))
    with pytest.raises(RuntimeError, match="ended at step 2 of 4 without its rule"):
        grpo.train(job)
    assert not job.outputs["outcome"].exists()


def test_a_loader_that_has_nothing_to_give_is_an_error(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven prompts for a rollout of eight; TRL makes no step and says nothing."""
    job = grpo_job(micro, tmp_path, **short())
    original = grpo.Run.build_trainer

    def starved(run: grpo.Run) -> Any:
        run.rows = run.rows[:7]
        return original(run)

    monkeypatch.setattr(grpo.Run, "build_trainer", starved)
    with pytest.raises(RuntimeError, match="ended at step 0 of 2 without its rule"):
        grpo.train(job)


def test_a_checkpoint_of_another_run_is_refused(micro: Path, tmp_path: Path) -> None:
    """A stale work folder: the checkpoints of another spec lie where ours would."""
    other = grpo_job(micro, tmp_path / "other", **short(learning_rate=2e-3))
    grpo.train(other)
    mine = grpo_job(micro, tmp_path / "mine", **short(max_steps=4))
    mine.work = mine.work.with_name("another-key")
    shutil.copytree(other.work / "checkpoints", mine.work / "checkpoints")
    with pytest.raises(UserError, match="belongs to another run.*delete .*checkpoints"):
        grpo.train(mine)


class TakenOver(TrainerCallback):
    """Another worker takes the folder over after the second step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            (self.folder / "lease-2.json").write_text(json.dumps({"nonce": "another"}))


def test_a_trainer_that_lost_its_folder_to_another_writes_nothing_more(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = grpo_job(micro, tmp_path, **short(max_steps=6, save_steps=4))
    job.lease = Lease(job.work)
    job.lease.acquire()
    changed_trainer(monkeypatch, lambda run, trainer: trainer.add_callback(TakenOver(job.work)))
    with pytest.raises(LeaseLost):
        grpo.train(job)
    job.lease.release()
    assert sorted(path.name for path in (job.work / "rollouts").iterdir()) == [
        "rollout-00000.parquet"
    ]
    assert not list((job.work / "checkpoints").glob("checkpoint-*"))
    assert not list((tmp_path / "out").iterdir())


def test_bf16_starts_at_its_reference_within_rounding(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The precision of the paper's grid: base in bf16, adapter in float32, autocast."""
    model = {"build": "world", "dtype": "bfloat16"}
    job = grpo_job(micro, tmp_path, "warm", **short(model=model))
    grpo.train(job)
    assert 0.0 <= outcome(job)["kl_first"] <= 1e-3
    assert {weight.dtype for weight in adapter(job).values()} == {torch.float32}


@pytest.mark.parametrize(
    ("init", "saved", "message"),
    [
        ("cold", "lora_B", "every B matrix .* is zero: the adapter did not learn"),
        ("warm", "start", "equals the one it started from"),
    ],
)
def test_a_saved_adapter_without_a_trace_of_training_is_an_error(
    micro: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    init: str,
    saved: str,
    message: str,
) -> None:
    """Training went well and something else was saved: a fresh adapter, or the start."""
    job = grpo_job(micro, tmp_path, init, **short())

    def save(model: Any, folder: Path, *_: Any) -> None:
        if saved == "start":
            shutil.copytree(job.artefact("start", "adapter"), folder)
            return
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.mul_(0.0 if saved in name else 1.0)
        lora.save_adapter(model, folder)

    monkeypatch.setattr(grpo, "save_adapter", save)
    with pytest.raises(RuntimeError, match=message):
        grpo.train(job)
    assert not job.outputs["outcome"].exists()


def test_a_resume_that_does_not_load_the_trained_adapter_is_an_error(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers 5.17 loads the reference alone; here our repair of it does nothing."""
    job = grpo_job(micro, tmp_path, "warm", **short(max_steps=4))
    changed_trainer(monkeypatch, lambda run, trainer: trainer.add_callback(StopEarly()))
    with pytest.raises(RuntimeError, match="ended at step 2 of 4"):
        grpo.train(job)
    monkeypatch.undo()
    load_adapter = PeftModel.load_adapter

    def only_the_reference(self: Any, path: Any, name: str, **more: Any) -> Any:
        return None if name == "default" else load_adapter(self, path, name, **more)

    changed_trainer(
        monkeypatch,
        lambda run, trainer: monkeypatch.setattr(PeftModel, "load_adapter", only_the_reference),
    )
    with pytest.raises(RuntimeError, match="adapter default is not the one in .*checkpoint-2"):
        grpo.train(job)
