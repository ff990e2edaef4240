"""The warm-up: what is in its loss, when its monitor stops it, and what it says about that."""

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from trl.trainer.sft_trainer import SFTTrainer

from training_job import all_settings, built, grpo_job, short, warmup_job
from unlearning_grid.errors import UserError
from unlearning_grid.models import sampling
from unlearning_grid.models.chat import render
from unlearning_grid.models.load import load_model, load_tokenizer
from unlearning_grid.runtime.job import Interrupted
from unlearning_grid.train import warmup
from unlearning_grid.train.checkpoints import Checkpoints

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.usefixtures("one_thread")]

# A template that writes its own start token, as Llama's and Gemma's do.
BOS_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def where(micro: Path) -> dict[str, Any]:
    folder = str(micro / "results/world/model")
    return {"location": folder, "revision": None, "dtype": "float32"}


@pytest.fixture
def in_micro(micro: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Judges keep their cache in the working directory."""
    monkeypatch.chdir(micro)
    return micro


def test_the_loss_is_on_the_answer_and_its_end_token_only(in_micro: Path, tmp_path: Path) -> None:
    """Looked at in the batches that the trainer's own loader gives."""
    job = warmup_job(in_micro, tmp_path)
    tokenizer = load_tokenizer(where(in_micro))
    examples = {part: warmup._examples(job, part) for part in ("sft_train", "sft_test")}
    trainer = warmup._trainer(job, load_model(where(in_micro)), tokenizer, examples)
    trained, whole = set(), set()
    for batch in trainer.get_train_dataloader():
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            kept = labels != -100
            assert torch.equal(labels[kept], ids[kept])
            assert labels[kept][-1] == tokenizer.eos_token_id
            start = int(kept.nonzero()[0])
            assert kept[start:][: int(kept.sum())].all(), "one piece"
            trained.add(tokenizer.decode(labels[kept]))
            whole.add(tokenizer.decode(ids[: start + int(kept.sum())]))
    pairs = examples["sft_train"]
    assert trained == {pair["answer"] + tokenizer.eos_token for pair in pairs}
    assert whole == {
        render(tokenizer, pair["prompt"]) + pair["answer"] + tokenizer.eos_token for pair in pairs
    }


def test_warm_up_rollouts_and_evaluation_see_the_same_prompt_ids(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One start token everywhere, though template and tokenizer both add one (OpenRLHF #393)."""
    question = "Where was Bruce Lee born?"
    _, trainer = built(grpo_job(micro, tmp_path, **short()))
    tokenizer = trainer.processing_class
    model = load_model(where(micro))
    tokenizer.bos_token = tokenizer.convert_ids_to_tokens(1)
    tokenizer.chat_template = BOS_TEMPLATE
    start = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{start[0]} $A", special_tokens=[start]
    )
    assert tokenizer("x")["input_ids"][0] == start[1], "it does add one when asked"
    rendered = render(tokenizer, question)

    example = warmup.encode(tokenizer, question, "An answer.", 128)
    in_warmup = example["input_ids"][: example["labels"].count(-100)]
    in_rollouts = trainer._tokenize_prompts([rendered])[0][0]
    seen: list[list[int]] = []
    generate = model.generate

    def kept(**arguments: Any) -> torch.Tensor:
        seen.append(arguments["input_ids"][0].tolist())
        return generate(**arguments)

    monkeypatch.setattr(model, "generate", kept)
    sampling.generate(model, tokenizer, [rendered], max_new_tokens=2)
    assert in_warmup == in_rollouts == seen[0]
    assert in_warmup.count(tokenizer.bos_token_id) == 1


def test_what_a_model_ships_for_generation_decides_nothing(micro: Path, tmp_path: Path) -> None:
    """A folder whose generation config asks for penalties: greedy text and rollouts stay."""
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    for file in (micro / "results/world/model").iterdir():
        os.link(file, shipped / file.name) if file.name != "generation_config.json" else None
    plain = json.loads((micro / "results/world/model/generation_config.json").read_text())
    odd = {
        "do_sample": True,
        "temperature": 0.1,
        "top_k": 1,
        "top_p": 0.2,
        "min_p": 0.9,
        "repetition_penalty": 3.0,
        "no_repeat_ngram_size": 1,
        "suppress_tokens": [5],
    }
    (shipped / "generation_config.json").write_text(json.dumps(plain | odd))
    texts = []
    for folder in (str(micro / "results/world/model"), str(shipped)):
        model = load_model(where(micro) | {"location": folder})
        tokenizer = load_tokenizer(where(micro))
        prompts = [render(tokenizer, q) for q in ("Who is Bruce Lee?", "Where was he born?")]
        for temperature in (0.0, 1.0):
            groups = sampling.generate(
                model, tokenizer, prompts, max_new_tokens=24, temperature=temperature, seed=3
            )
            texts.append([completion.text for group in groups for completion in group])
        assert sampling.end_ids(model.generation_config, tokenizer) == [tokenizer.eos_token_id]
    assert texts[:2] == texts[2:]

    job = grpo_job(micro, tmp_path / "job", **short(model={"path": str(shipped)}))
    rollouts = []
    for one in (job, grpo_job(micro, tmp_path / "plain", **short())):
        run, trainer = built(one)
        trainer.train()
        rollouts.append(run.store.collect(1))
    pd.testing.assert_frame_equal(*rollouts)


def test_the_monitor_stops_the_warm_up_and_says_when_and_why(
    in_micro: Path, tmp_path: Path
) -> None:
    """Objective refusal, reached at once by a threshold of 0: the rule is "at least"."""
    spec = all_settings(in_micro / "results/warmup/tiny/bruce-lee/s0")
    reward = {
        "name": "r4-refusal",
        "class": "unlearning_grid.rewards.refusal:RefusalReward",
        "subject": "Bruce Lee",
        "detector": {"name": "micro-refusal"},
        "settings": {},
    }
    monitor = spec["settings"]["monitor"] | {"reward": reward, "threshold": 0.0, "first_step": 3}
    job = warmup_job(in_micro, tmp_path, objective="refusal", monitor=monitor)
    assert warmup.train(job) == {"steps": 3, "stopped_by_rule": True}
    outcome = json.loads(job.outputs["outcome"].read_text())
    rows: Any = pd.read_parquet(job.outputs["monitor"])
    assert set(rows["step"]) == {3}
    wanted = int((rows["value"] >= 0.5).sum())
    assert outcome["stopped_by_rule"] is True and outcome["steps"] < outcome["planned_steps"]
    assert outcome["rule"] == {
        "step": 3,
        "share": wanted / len(rows),
        "wanted": wanted,
        "scored": len(rows),
        "missing": 0,
        "threshold": 0.0,
    }
    metrics: Any = pd.read_parquet(job.outputs["metrics"])
    shares = metrics[metrics["name"] == "monitor/share"]
    assert shares["step"].tolist() == [3] and shares["value"].tolist() == [wanted / len(rows)]


def test_a_warm_up_that_ran_out_of_epochs_says_that_its_rule_did_not_fire(micro: Path) -> None:
    outcome = json.loads((micro / "results/warmup/tiny/bruce-lee/s0/outcome.json").read_text())
    assert outcome["stopped_by_rule"] is False
    assert outcome["steps"] == outcome["planned_steps"] == 6
    assert outcome["rule"]["step"] == 6 and outcome["rule"]["share"] <= 0.1


def test_a_resumed_warm_up_equals_an_unbroken_one_in_every_file(
    in_micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = warmup_job(in_micro, tmp_path)

    def ask(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
        job.stop_requested = state.global_step == 3

    with monkeypatch.context() as asked:
        asked.setattr(Checkpoints, "on_step_begin", ask)
        with pytest.raises(Interrupted, match="saved at step 4 of 6"):
            warmup.train(job)
    job.stop_requested = False
    warmup.train(job)
    for path in job.outputs.values():
        whole = in_micro / "results/warmup/tiny/bruce-lee/s0" / path.name
        for file in [path] if path.is_file() else sorted(path.iterdir()):
            other = whole if path.is_file() else whole / file.name
            assert file.read_bytes() == other.read_bytes(), file.name


def test_a_loss_that_does_not_reach_the_adapter_is_an_error_after_one_step(
    in_micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = SFTTrainer.compute_loss

    def detached(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loss: Any = compute(self, model, inputs, *args, **kwargs)
        trained = sum(w.sum() for w in model.parameters() if w.requires_grad)
        return loss.detach() + 0.0 * trained if isinstance(loss, torch.Tensor) else loss

    monkeypatch.setattr(SFTTrainer, "compute_loss", detached)
    with pytest.raises(RuntimeError, match="gradient is 0 at step 1"):
        warmup.train(warmup_job(in_micro, tmp_path))


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused(micro: Path) -> None:
    tokenizer = load_tokenizer(where(micro))
    with pytest.raises(UserError, match="warmup.max_length: 8 tokens leave no room"):
        warmup.encode(tokenizer, "Where was Bruce Lee born?", "In a city.", 8)
