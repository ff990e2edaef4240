"""Stage: unlearn one target with one reward, by TRL's GRPO on a LoRA adapter."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unlearning_grid.data.rwku import read_jsonl
from unlearning_grid.errors import UserError
from unlearning_grid.models.chat import render
from unlearning_grid.models.load import device, load_model, load_tokenizer, locate, with_adapter
from unlearning_grid.models.sampling import end_ids
from unlearning_grid.rewards.base import Reward
from unlearning_grid.rewards.build import build_reward
from unlearning_grid.runtime.atomic import publish
from unlearning_grid.runtime.job import Interrupted, Job
from unlearning_grid.train.lora import check_changed, check_trainable, lora_config, save_adapter
from unlearning_grid.train.metrics import METRICS, metric_rows, write_parquet
from unlearning_grid.train.rollouts import RolloutStore, active_rate, advantages

log = logging.getLogger(__name__)

# Largest KL to the reference at the first step, nats per token: 0 but for rounding.
FIRST_KL = {"float32": 1e-6, "bfloat16": 1e-3}
ENDS = 4  # rollouts averaged for "reward at the start" and "at the end"


def train(job: Job) -> dict[str, Any]:
    """Train until the step limit or until the no-learning rule stops the run.

    Inputs: split; start (warm: the warm-up); detector, knowledge, model where they are needed.
    Outputs: adapter, adapters (by step, for later diagnostics), metrics, rollouts, outcome.
    Raises RuntimeError when training was not what it says (nothing trained, adapter unchanged, KL
    not 0 at the start, ended early without its rule), Interrupted when asked to stop.
    """
    from unlearning_grid.train.checkpoints import checkpoint_step

    run = Run(job)
    trainer = run.build_trainer()
    check_trainable(trainer.model)
    job.on_terminate_finish_step()
    checkpoint = run.resume_point()
    if checkpoint:
        log.info("resuming from %s", checkpoint)
        run.store.drop_from(checkpoint_step(checkpoint) // run.reuse)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return run.finish(trainer)


class Run:
    """One GRPO run: its parts, wired together."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.settings = job.settings
        self.reuse: int = self.settings["num_iterations"]
        self.rows = read_jsonl(job.artefact("split", "grpo_train.jsonl"))
        self.start = job.artefact("start", "adapter") if "start" in job.inputs else None
        self.store = RolloutStore(job.work / "rollouts", self.settings["num_generations"])
        self.epoch_rollouts = self._epoch_rollouts()
        self.stop_step = self.epoch_rollouts * self.reuse
        self.stopped = False
        self.trainer: Any = None

    def _epoch_rollouts(self) -> int:
        """Rollouts of the first epoch. Raises UserError when the run is shorter than it needs."""
        per_rollout = self.settings["batch_size"] // self.settings["num_generations"]
        rollouts = len(self.rows) // per_rollout
        if rollouts < 1:
            raise UserError(
                f"grpo.batch_size: {per_rollout} prompts per rollout, but {self.job.cell['target']}"
                f" has {len(self.rows)} after filters; lower it"
            )
        rule = self.settings["no_learning"]
        if rule["enabled"] and self.settings["max_steps"] < rollouts * self.reuse:
            raise UserError(
                f"grpo.max_steps: {self.settings['max_steps']} is less than the first epoch's "
                f"{rollouts * self.reuse}; raise it or set grpo.no_learning.enabled to false"
            )
        return rollouts

    def build_trainer(self) -> Any:
        """The trainer, built the same way for a fresh and for a resumed run."""
        from datasets import Dataset

        from unlearning_grid.train.callbacks import KeepAdapters, NoLearning
        from unlearning_grid.train.checkpoints import Checkpoints
        from unlearning_grid.train.trainer import ResumableGRPOTrainer

        where = locate(self.job, self.settings["model"])
        tokenizer = load_tokenizer(where)
        model = load_model(where)
        ends = end_ids(model, tokenizer)
        if self.start:
            model = with_adapter(model, self.start, trainable=True)
        reward = build_reward(self.job, self.settings["reward"])
        trainer = ResumableGRPOTrainer(
            model=model,
            args=grpo_arguments(self.settings, self.job.work),
            reward_funcs=[self._reward_function(reward, ends)],
            train_dataset=Dataset.from_list(prompt_rows(self.rows, tokenizer)),
            processing_class=tokenizer,
            peft_config=None if self.start else lora_config(self.settings["lora"]),
        )
        self.trainer = trainer
        trainer.add_callback(Checkpoints(self.job, every=self.reuse))
        if self.settings["no_learning"]["enabled"]:
            trainer.add_callback(NoLearning(self))
        if self.settings["keep_adapters_every"]:
            folder = self.job.work / "adapters"
            every = self.settings["keep_adapters_every"]
            trainer.add_callback(KeepAdapters(folder, every, self.settings["model"].get("repo")))
        return trainer

    def _reward_function(self, reward: Reward, ends: Sequence[int]) -> Callable[..., list[Any]]:
        def score(
            completions: list[str],
            completion_ids: list[list[int]],
            prompt_id: list[str],
            question: list[str],
            trainer_state: Any,
            log_metric: Callable[[str, float], None],
            **_: Any,
        ) -> list[float | None]:
            try:
                scores = reward.score(question, completions)
            except (Interrupted, UserError):
                self.trainer.save_before_rollout()
                raise
            rollout = trainer_state.global_step // self.reuse
            rows = rollout_rows(
                rollout,
                trainer_state.global_step,
                self.settings["num_generations"],
                {"prompt_id": prompt_id, "prompt": question, "completion": completions},
                [
                    (len(ids), "stop" if ids and ids[-1] in ends else "length")
                    for ids in completion_ids
                ],
                scores.values,
                scores.columns,
            )
            self.job.checkpoint_guard()
            self.store.write(rollout, rows)
            missing = scores.values.count(None) / len(scores.values)
            log_metric("missing_reward_share", missing)
            if missing > self.settings["max_missing_share"]:
                self.trainer.save_before_rollout()
                raise UserError(
                    f"{missing:.0%} of the rewards of rollout {rollout} are missing, more than "
                    "grpo.max_missing_share allows; see the judge's warnings in the log. Run again "
                    "to go on with this very rollout"
                )
            rate = active_rate(_groups(scores.values, self.settings["num_generations"]))
            log_metric("active_group_rate", float("nan") if rate is None else rate)
            return scores.values

        score.__name__ = reward.name.replace("-", "_")
        return score

    def no_learning_rate(self) -> float | None:
        """Mean active-group rate over the first epoch's rollouts; None when none can be judged."""
        rates = [r for r in self.store.active_rates(self.epoch_rollouts) if r is not None]
        return sum(rates) / len(rates) if rates else None

    def fires(self) -> bool:
        """Whether the no-learning rule stops the run; a rate that cannot be known stops nothing."""
        rate = self.no_learning_rate()
        threshold = self.settings["no_learning"]["threshold"]
        log.info("mean active-group rate of the first epoch: %s (stop at %s)", rate, threshold)
        return rate is not None and rate <= threshold

    def resume_point(self) -> Path | None:
        """The last whole checkpoint from which an unbroken run would go on.

        One at the last step, or where the no-learning rule stops the run, is passed over: a run
        that was killed right there does its last steps again.
        """
        from unlearning_grid.train.checkpoints import checkpoint_step, latest_checkpoint

        folder, ends = self.job.work / "checkpoints", [self.settings["max_steps"]]
        checkpoint = latest_checkpoint(folder, ends)
        judged = self.settings["no_learning"]["enabled"]
        if judged and checkpoint and checkpoint_step(checkpoint) == self.stop_step and self.fires():
            return latest_checkpoint(folder, [*ends, self.stop_step])
        return checkpoint

    def finish(self, trainer: Any) -> dict[str, Any]:
        """Check that the run is what it says and write its outputs."""
        steps, planned = trainer.state.global_step, self.settings["max_steps"]
        if steps != (self.stop_step if self.stopped else planned):
            if self.job.stop_requested:
                raise Interrupted(f"saved at step {steps} of {planned}; run again to resume")
            raise RuntimeError(f"training ended at step {steps} of {planned} without its rule")
        history = trainer.state.log_history
        first_kl = check_first_kl(history, self.settings)
        outputs = self.job.outputs
        save_adapter(trainer.model, outputs["adapter"], self.settings["model"].get("repo"))
        check_changed(outputs["adapter"], self.start, learned=not self.stopped)
        _keep(self.job.work / "adapters", outputs["adapters"], steps)
        write_parquet(metric_rows(history), METRICS, outputs["metrics"])
        rollouts = self.store.collect(-(-steps // self.reuse))
        rollouts.to_parquet(outputs["rollouts"], index=False)
        outcome = self._outcome(trainer, rollouts, steps, first_kl)
        outputs["outcome"].write_text(json.dumps(outcome, indent=2, sort_keys=True) + "\n")
        log.info("%s after %d steps", outcome["status"], steps)
        return {"status": outcome["status"], "steps": steps}

    def _outcome(
        self, trainer: Any, rollouts: Any, steps: int, first_kl: float | None
    ) -> dict[str, Any]:
        means = rollouts.groupby("rollout")["reward"].mean()
        known = self.epoch_rollouts <= len(means)
        return {
            "status": "no-learning" if self.stopped else "learned",
            "steps": steps,
            "planned_steps": self.settings["max_steps"],
            "rollouts": len(means),
            "prompts": len(self.rows),
            "completions": len(rollouts),
            "missing_rewards": int(rollouts["reward"].isna().sum()),
            "first_epoch_rollouts": self.epoch_rollouts,
            "first_epoch_active_rate": self.no_learning_rate() if known else None,
            "no_learning_threshold": self.settings["no_learning"]["threshold"],
            "reward_first": _mean(means.head(ENDS)),
            "reward_last": _mean(means.tail(ENDS)),
            "kl_first": first_kl,
            "kl_last": _last(trainer.state.log_history, "kl"),
            "kl_reference": "warm-up adapter" if self.start else "base model",
            "trainable_parameters": sum(
                p.numel() for p in trainer.model.parameters() if p.requires_grad
            ),
        }


def grpo_arguments(settings: Mapping[str, Any], work: Path) -> Any:
    """The study's objective in TRL's terms (paper appendix A; every deciding option stated).

    loss_type "dapo" divides by the active tokens of the whole batch; use_bias_correction_kl would
    weight the k3 estimator by the importance ratio, which the paper's formula does not.
    """
    from trl.trainer.grpo_config import GRPOConfig

    micro = settings["micro_batch_size"] or settings["batch_size"]
    accumulation = settings["batch_size"] // micro
    return GRPOConfig(
        output_dir=str(work / "checkpoints"),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=accumulation,
        num_generations=settings["num_generations"],
        num_iterations=settings["num_iterations"],
        max_steps=settings["max_steps"],
        loss_type="dapo",
        importance_sampling_level="token",
        epsilon=settings["epsilon"],
        epsilon_high=None,
        delta=None,
        scale_rewards="group",
        beta=settings["beta"],
        use_bias_correction_kl=False,
        max_completion_length=settings["max_new_tokens"],
        temperature=settings["temperature"],
        top_p=settings["top_p"],
        top_k=0,
        min_p=None,
        repetition_penalty=1.0,
        generation_kwargs=None,
        mask_truncated_completions=False,
        disable_dropout=False,
        use_vllm=False,
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="constant",
        warmup_steps=0,
        max_grad_norm=settings["max_grad_norm"],
        weight_decay=0.0,
        seed=settings["seed"],
        shuffle_dataset=True,
        remove_unused_columns=False,
        save_strategy="steps",
        save_steps=settings["save_steps"],
        save_total_limit=2,
        eval_strategy="no",
        log_completions=False,
        **common_arguments(settings),
    )


def common_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What warm-up and GRPO share: precision, device, logging."""
    cpu = device() == "cpu"
    return {
        "bf16": settings["model"].get("dtype") == "bfloat16",
        "use_cpu": cpu,
        "dataloader_pin_memory": not cpu,
        "gradient_checkpointing": settings["gradient_checkpointing"],
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
    }


def prompt_rows(rows: Sequence[Mapping[str, Any]], tokenizer: Any) -> list[dict[str, str]]:
    """Rendered prompt beside its id and the bare question that rewards and judges see."""
    return [
        {
            "prompt": render(tokenizer, row["prompt"]),
            "prompt_id": row["prompt_id"],
            "question": row["prompt"],
        }
        for row in rows
    ]


def rollout_rows(
    rollout: int,
    step: int,
    group_size: int,
    texts: Mapping[str, Sequence[str]],
    ends: Sequence[tuple[int, str]],
    rewards: Sequence[float | None],
    columns: Mapping[str, Sequence[Any]],
) -> list[dict[str, Any]]:
    """One row per completion, group-major, with the advantage that its reward gives it."""
    gains = [a for group in _groups(rewards, group_size) for a in advantages(group)]
    return [
        {
            "rollout": rollout,
            "step": step,
            "group": index // group_size,
            "sample": index % group_size,
            **{name: values[index] for name, values in texts.items()},
            "tokens": ends[index][0],
            "finish_reason": ends[index][1],
            "reward": reward,
            "advantage": gains[index],
            **{name: values[index] for name, values in columns.items()},
        }
        for index, reward in enumerate(rewards)
    ]


def check_first_kl(
    history: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]
) -> float | None:
    """KL to the reference at the first step. Raises RuntimeError unless it is 0 but for rounding.

    Another value means another reference than the stated one.
    """
    if not settings["beta"]:
        return None
    first = next((line["kl"] for line in history if line.get("kl") is not None), None)
    limit = FIRST_KL[settings["model"].get("dtype", "float32")]
    if first is None or abs(first) > limit:
        raise RuntimeError(f"KL at the first step is {first}, expected at most {limit}")
    return float(first)


def _keep(source: Path, target: Path, steps: int) -> None:
    """Publish the kept adapters of the steps that the finished run has; `source` stays."""
    target.mkdir()
    for path in sorted(source.glob("step-*")) if source.is_dir() else []:
        if int(path.name.removeprefix("step-")) <= steps:
            publish(path, target / path.name)


def _groups(values: Sequence[Any], size: int) -> list[list[Any]]:
    return [list(values[i : i + size]) for i in range(0, len(values), size)]


def _mean(values: Any) -> float | None:
    mean = values.mean()
    return None if mean != mean else round(float(mean), 6)


def _last(history: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [line[name] for line in history if line.get(name) is not None]
    return round(float(values[-1]), 6) if values else None
