"""Stage: unlearn one target with one reward, by TRL's GRPO on a LoRA adapter."""

import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unlearning_grid.data.rwku import read_jsonl
from unlearning_grid.errors import UserError
from unlearning_grid.models.chat import render
from unlearning_grid.models.load import load_model, load_tokenizer, locate, with_adapter
from unlearning_grid.models.sampling import end_ids
from unlearning_grid.rewards.build import build_reward
from unlearning_grid.runtime.atomic import publish
from unlearning_grid.runtime.job import Interrupted, Job
from unlearning_grid.runtime.launch import run_processes
from unlearning_grid.runtime.sinks import prepare
from unlearning_grid.train import processes
from unlearning_grid.train.arguments import check_engine_fits, grpo_arguments
from unlearning_grid.train.checks import check_changed, check_trainable
from unlearning_grid.train.lora import lora_config, save_adapter
from unlearning_grid.train.metrics import METRICS, metric_rows, write_parquet
from unlearning_grid.train.rollouts import RolloutStore
from unlearning_grid.train.rules import no_learning_step
from unlearning_grid.train.scoring import RolloutScorer

log = logging.getLogger(__name__)

ENDS = 4  # rollouts averaged for "reward at the start" and "at the end"


def train(job: Job) -> dict[str, Any]:
    """Train until the step limit or until the no-learning rule stops the run.

    Inputs: split; start (warm: the warm-up); detector, knowledge, model where they are needed.
    Outputs: adapter, adapters (by step, for later diagnostics), metrics, rollouts, outcome.
    Raises RuntimeError when training was not what it says (train.checks), UserError when it cannot
    be done as asked, Interrupted when asked to stop.
    """
    check_engine_fits(job.settings, job.processes)
    if job.processes > 1:
        return run_processes(job, "unlearning_grid.train.grpo:train_here")
    return train_here(job)


def train_here(job: Job) -> dict[str, Any]:
    """Train in this process, one of `job.processes` that do the same."""
    from unlearning_grid.train.checkpoints import checkpoint_step

    processes.join(job.processes)
    run = Run(job)
    trainer = run.build_trainer()
    check_trainable(trainer.model)
    job.on_terminate_finish_step()
    checkpoint = run.resume_point()
    processes.wait()  # each has looked at the same files
    if checkpoint:
        log.info("resuming from %s", checkpoint)
        if processes.is_main():
            run.store.drop_from(checkpoint_step(checkpoint) // run.reuse)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return run.finish(trainer)


class Run:
    """One GRPO run: its parts, wired together."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.settings = job.settings
        self.model_facts: Mapping[str, Any] = self.settings["model"]
        self.reuse: int = self.settings["num_iterations"]
        self.rows = read_jsonl(job.artefact("split", "grpo_train.jsonl"))
        self.start = job.artefact("start", "adapter") if "start" in job.inputs else None
        self.reference = "warm-up adapter" if self.start else "base model"
        self.store = RolloutStore(job.work / "rollouts", self.settings["num_generations"])
        self.epoch_rollouts, self.stop_step = self._first_epoch()
        self.rule: Any = None

    def _first_epoch(self) -> tuple[int, int]:
        """Its rollouts, and the step after which the no-learning rule judges them.

        Raises UserError when the run is shorter.
        """
        per_rollout = self.settings["batch_size"] // self.settings["num_generations"]
        rollouts = len(self.rows) // per_rollout
        if rollouts < 1:
            raise UserError(
                f"grpo.batch_size: {per_rollout} prompts per rollout, but {self.job.cell['target']}"
                f" has {len(self.rows)} after filters; lower it"
            )
        rule = self.settings["no_learning"]
        stop = no_learning_step(rollouts, self.reuse, rule["timing"])
        if rule["enabled"] and self.settings["max_steps"] < stop:
            raise UserError(
                f"grpo.max_steps: {self.settings['max_steps']} ends before the no-learning rule "
                f"judges, at step {stop}; raise it or set grpo.no_learning.enabled to false"
            )
        return rollouts, stop

    def build_trainer(self) -> Any:
        """The trainer, built the same way for a fresh and for a resumed run."""
        from datasets import Dataset

        where = locate(self.job, self.model_facts)
        tokenizer = load_tokenizer(where)
        model = load_model(where)
        ends = end_ids(model.generation_config, tokenizer)
        if self.start:
            model = with_adapter(model, self.start, trainable=True)
        scorer = RolloutScorer(
            self.job,
            build_reward(self.job, self.settings["reward"]),
            self.store,
            ends,
            lambda: trainer.save_before_rollout(),
        )
        prompts = prompt_rows(self.rows, tokenizer)
        trainer = self._trainer_class(where)(
            model=model,
            args=grpo_arguments(
                self.settings,
                self.job.work,
                self.job.processes,
                prepare(self.job),
                longest_prompt(prompts, tokenizer),
            ),
            reward_funcs=[scorer],
            train_dataset=Dataset.from_list(prompts),
            processing_class=tokenizer,
            peft_config=None if self.start else lora_config(self.settings["lora"]),
        )
        trainer.ends = ends
        self._add_callbacks(trainer)
        return trainer

    def _trainer_class(self, where: Mapping[str, Any]) -> Any:
        if self.settings.get("use_vllm"):
            from unlearning_grid.train.engine import EngineTrainer

            return partial(EngineTrainer, where)
        from unlearning_grid.train.trainer import StudyTrainer

        return StudyTrainer

    def _add_callbacks(self, trainer: Any) -> None:
        from unlearning_grid.train.callbacks import Health, KeepAdapters, NoLearning
        from unlearning_grid.train.checkpoints import Checkpoints

        dtype = self.model_facts.get("dtype", "float32")
        reference = self.reference if self.settings["beta"] else None
        trainer.add_callback(Health(trainer, reference, dtype, self.reuse))
        trainer.add_callback(Checkpoints(self.job, every=self.reuse))
        if self.settings["no_learning"]["enabled"]:
            self.rule = NoLearning(self.stop_step, self.fires)
            trainer.add_callback(self.rule)
        if self.settings["keep_adapters_every"]:
            every, base = self.settings["keep_adapters_every"], self.model_facts.get("repo")
            trainer.add_callback(KeepAdapters(self.job.work / "adapters", every, base, dtype))

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

    @property
    def stopped(self) -> bool:
        """Whether the no-learning rule stopped this run."""
        return self.rule is not None and self.rule.stopped

    def resume_point(self) -> Path | None:
        """The last whole checkpoint from which an unbroken run would go on.

        One at the last step, or where the no-learning rule stops the run, is passed over: a run
        that was killed right there does its last steps again.
        """
        from unlearning_grid.train.checkpoints import checkpoint_step, latest_checkpoint

        ends = [self.settings["max_steps"]]
        checkpoint = latest_checkpoint(self.job, ends)
        judged = self.settings["no_learning"]["enabled"]
        if judged and checkpoint and checkpoint_step(checkpoint) == self.stop_step and self.fires():
            return latest_checkpoint(self.job, [*ends, self.stop_step])
        return checkpoint

    def finish(self, trainer: Any) -> dict[str, Any]:
        """Check that the run is what it says and write its outputs."""
        steps, planned = trainer.state.global_step, self.settings["max_steps"]
        if steps != (self.stop_step if self.stopped else planned):
            if any(processes.gather([self.job.stop_requested])):
                raise Interrupted(f"saved at step {steps} of {planned}; run again to resume")
            raise RuntimeError(f"training ended at step {steps} of {planned} without its rule")
        rollouts = self.store.collect(-(-steps // self.reuse))
        signal = bool(rollouts["active"].fillna(False).any())
        status = "learned" if signal and not self.stopped else "no-learning"
        if processes.is_main():
            self._write(trainer, status, steps, rollouts)
            log.info("%s after %d steps", status, steps)
        return {"status": status, "steps": steps, "processes": self.job.processes}

    def _write(self, trainer: Any, status: str, steps: int, rollouts: Any) -> None:
        outputs = self.job.outputs
        save_adapter(trainer.model, outputs["adapter"], self.model_facts.get("repo"))
        check_changed(outputs["adapter"], self.start, learned=status == "learned")
        _keep(self.job.work / "adapters", outputs["adapters"], steps)
        history = trainer.state.log_history
        write_parquet(metric_rows(history), METRICS, outputs["metrics"])
        rollouts.to_parquet(outputs["rollouts"], index=False)
        outcome = {
            "status": status,
            "steps": steps,
            "planned_steps": self.settings["max_steps"],
            "trainable_parameters": sum(
                p.numel() for p in trainer.model.parameters() if p.requires_grad
            ),
            **self._reward_facts(rollouts),
            "kl_first": _logged(history, "kl", 0),
            "kl_last": _logged(history, "kl", -1),
            "kl_reference": self.reference,
        }
        outputs["outcome"].write_text(json.dumps(outcome, indent=2, sort_keys=True) + "\n")

    def _reward_facts(self, rollouts: Any) -> dict[str, Any]:
        means = rollouts.groupby("rollout")["reward"].mean()
        known = self.epoch_rollouts <= len(means)
        return {
            "rollouts": len(means),
            "prompts": len(self.rows),
            "completions": len(rollouts),
            "missing_rewards": int(rollouts["reward"].isna().sum()),
            "first_epoch_rollouts": self.epoch_rollouts,
            "first_epoch_active_rate": self.no_learning_rate() if known else None,
            "first_epoch_active_rates": (
                self.store.active_rates(self.epoch_rollouts) if known else None
            ),
            "no_learning_threshold": self.settings["no_learning"]["threshold"],
            "reward_first": _mean(means.head(ENDS)),
            "reward_last": _mean(means.tail(ENDS)),
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


def longest_prompt(rows: Sequence[Mapping[str, str]], tokenizer: Any) -> int:
    """Tokens of the longest rendered prompt, counted as the trainer tokenises them."""
    texts = [row["prompt"] for row in rows]
    return max(map(len, tokenizer(text=texts, add_special_tokens=False)["input_ids"]))


def _keep(source: Path, target: Path, steps: int) -> None:
    """Publish the adapters kept before the end; `source` stays. The last one is the result."""
    target.mkdir()
    for path in sorted(source.glob("step-*")) if source.is_dir() else []:
        if int(path.name.removeprefix("step-")) < steps:
            publish(path, target / path.name)


def _mean(values: Any) -> float | None:
    mean = values.mean()
    return None if mean != mean else round(float(mean), 6)


def _logged(history: Sequence[Mapping[str, Any]], name: str, place: int) -> float | None:
    """The first (place 0) or last (-1) logged value of a metric."""
    values = [line[name] for line in history if line.get(name) is not None]
    return round(float(values[place]), 6) if values else None
