"""Stage: SFT warm-up on broad answers, by TRL's SFTTrainer on a LoRA adapter."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from unlearning_grid.data.rwku import read_jsonl
from unlearning_grid.errors import UserError
from unlearning_grid.models.chat import render
from unlearning_grid.models.load import load_model, load_tokenizer, locate
from unlearning_grid.runtime.job import Interrupted, Job
from unlearning_grid.runtime.sinks import prepare
from unlearning_grid.train import processes
from unlearning_grid.train.arguments import sft_arguments
from unlearning_grid.train.checks import check_changed, check_trainable
from unlearning_grid.train.lora import lora_config, save_adapter
from unlearning_grid.train.metrics import METRICS, metric_rows, write_parquet

log = logging.getLogger(__name__)

# TRL counts the tokens of its own process, so a resumed run has fewer.
NOT_RESUMED = ("num_tokens",)

MONITOR = {
    "step": "int",
    "prompt_id": "str",
    "sample": "int",
    "completion": "str",
    "value": "float",
}


def train(job: Job) -> dict[str, Any]:
    """Train until the epoch cap or until the monitor's rule stops the run.

    Inputs: split; broad (objective broad); detector, knowledge, model where they are needed.
    Outputs: adapter, metrics, monitor (every sampled completion with its value), outcome.
    Raises RuntimeError when training was not what it says (train.checks), UserError without usable
    answers, Interrupted when asked to stop.
    """
    from unlearning_grid.train.callbacks import Gradients
    from unlearning_grid.train.checkpoints import Checkpoints, latest_checkpoint
    from unlearning_grid.train.monitor import Monitor

    settings = job.settings
    processes.join(1)
    where = locate(job, settings["model"])
    tokenizer = load_tokenizer(where)
    examples = {part: _examples(job, part) for part in ("sft_train", "sft_test")}
    trainer = _trainer(job, load_model(where), tokenizer, examples)
    check_trainable(trainer.model)
    trainer.add_callback(Gradients())
    trainer.add_callback(Checkpoints(job))
    monitor = None
    if settings["monitor"]:
        prompts = read_jsonl(job.artefact("split", "sft_test.jsonl"))
        monitor = Monitor(job, tokenizer, prompts, trainer)
        trainer.add_callback(monitor)
    job.on_terminate_finish_step()
    stops = monitor.stops() if monitor else []
    checkpoint = latest_checkpoint(job, [trainer_steps(trainer), *stops])
    if checkpoint:
        log.info("resuming from %s", checkpoint)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return _finish(job, trainer, monitor, examples)


def _examples(job: Job, part: str) -> list[dict[str, str]]:
    """Prompt and answer pairs of one part. Raises UserError when there are none."""
    if job.settings["objective"] == "refusal":
        rows = read_jsonl(job.artefact("split", f"{part}.jsonl"))
        pairs = [{"prompt": row["prompt"], "answer": row["completion"]} for row in rows]
    else:
        rows = read_jsonl(job.artefact("broad", "answers.jsonl"))
        pairs = [
            {"prompt": row["prompt"], "answer": row["answer"]}
            for row in rows
            if row["split"] == part and row["status"] == "ok"
        ]
    if not pairs:
        raise UserError(
            f"broad answers of {job.cell['target']}: none is usable in {part}; see "
            f"results/data/{job.cell['target']}/broad/report.json"
        )
    return pairs


def encode(tokenizer: Any, prompt: str, answer: str, max_length: int) -> dict[str, list[int]]:
    """Token ids of the rendered prompt, the answer and the end-of-turn token; loss on the latter.

    The prompt is rendered as in rollouts and evaluation. Labels of prompt tokens are -100.
    Raises UserError when the prompt alone is too long.
    """
    start = tokenizer(render(tokenizer, prompt), add_special_tokens=False)["input_ids"]
    answer_ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    target = [*answer_ids, tokenizer.eos_token_id]
    if len(start) >= max_length:
        raise UserError(
            f"warmup.max_length: {max_length} tokens leave no room for an answer to a prompt of "
            f"{len(start)}; raise it"
        )
    if len(start) + len(target) > max_length:
        log.warning("an example of %d tokens is cut at warmup.max_length", len(start) + len(target))
    return {
        "input_ids": [*start, *target][:max_length],
        "labels": [*([-100] * len(start)), *target][:max_length],
    }


def _trainer(
    job: Job, model: Any, tokenizer: Any, examples: Mapping[str, Sequence[Mapping[str, str]]]
) -> Any:
    from datasets import Dataset
    from trl.trainer.sft_trainer import SFTTrainer

    length = job.settings["max_length"]
    data = {
        part: Dataset.from_list(
            [encode(tokenizer, pair["prompt"], pair["answer"], length) for pair in pairs]
        )
        for part, pairs in examples.items()
    }
    return SFTTrainer(
        model=model,
        args=sft_arguments(job.settings, job.work, prepare(job)),
        train_dataset=data["sft_train"],
        eval_dataset=data["sft_test"],
        processing_class=tokenizer,
        peft_config=lora_config(job.settings["lora"]),
    )


def trainer_steps(trainer: Any) -> int:
    """Optimizer steps of a whole run: epochs x batches."""
    return int(trainer.args.num_train_epochs) * len(trainer.get_train_dataloader())


def _finish(job: Job, trainer: Any, monitor: Any, examples: Mapping[str, Any]) -> dict[str, Any]:
    steps, planned = trainer.state.global_step, trainer.state.max_steps
    fired = monitor is not None and monitor.fired
    if steps != planned and not fired:
        if job.stop_requested:
            raise Interrupted(f"saved at step {steps} of {planned}; run again to resume")
        raise RuntimeError(f"training ended at step {steps} of {planned} without its rule")
    outputs = job.outputs
    save_adapter(trainer.model, outputs["adapter"], job.settings["model"].get("repo"))
    check_changed(outputs["adapter"], None)
    history = trainer.state.log_history
    write_parquet(metric_rows(history, NOT_RESUMED), METRICS, outputs["metrics"])
    write_parquet(monitor.rows(steps) if monitor else [], MONITOR, outputs["monitor"])
    outcome = {
        "status": "finished",
        "steps": steps,
        "planned_steps": planned,
        "examples": len(examples["sft_train"]),
        "monitor_examples": len(examples["sft_test"]),
        "stopped_by_rule": fired,
        "rule": monitor.evidence() if monitor else None,
    }
    outputs["outcome"].write_text(json.dumps(outcome, indent=2, sort_keys=True) + "\n")
    log.info("finished after %d of %d steps (rule fired: %s)", steps, planned, fired)
    return {"steps": steps, "stopped_by_rule": fired}
