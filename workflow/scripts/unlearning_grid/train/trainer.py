"""TRL's GRPO trainer, resumable and checked. Imports torch and TRL: import it inside functions."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from unlearning_grid.train.checks import RATIO, check_ends, check_loaded
from unlearning_grid.train.rollouts import SPREAD


class EpochSampler(RepeatSampler):
    """Prompt order that depends on the epoch, also after a resume.

    TRL's sampler draws each epoch's order from one generator, which starts over in a resumed run
    and would replay the first epoch's order.
    """

    def set_epoch(self, epoch: int) -> None:
        """Put the generator where an unbroken run has it at the start of `epoch`."""
        assert self.seed is not None
        self.generator.manual_seed(self.seed)
        for _ in range(epoch):
            torch.randperm(self.num_samples, generator=self.generator)


class StudyTrainer(GRPOTrainer):
    """GRPOTrainer as the study states it.

    A run resumed between two rollouts equals an unbroken one; groups of equal rewards have no
    advantage at all; what each rollout and update did is measured, for the checks.

    Attributes:
        ends: token ids that end a turn, all of them; set it before training.
        signal: whether rewards differ within some group of the current rollout.
    """

    ends: Sequence[int] = ()
    signal = False

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        self._after_step = _random_states(), self.state.num_input_tokens_seen
        return loss

    def save_before_rollout(self) -> None:
        """Write the checkpoint from which the rollout under way can be sampled again, the same.

        For a run that must stop inside a rollout: weights and optimizer are still those of the last
        step; random states and the token count are put back to where that step left them.
        """
        from unlearning_grid.train.checkpoints import COMPLETE

        folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
        if not self.state.global_step or (folder / COMPLETE).exists():
            return  # nothing was learned yet, or it is there: never write over a whole one
        states, self.state.num_input_tokens_seen = self._after_step
        _restore(states)
        model: Any = self.model
        self._save_checkpoint(model, trial=None)
        self.callback_handler.on_save(self.args, self.state, self.control)

    def _calculate_rewards(self, *args: Any) -> torch.Tensor:
        """Rewards of all processes, shape (completions, 1); notes which groups are active."""
        rewards = super()._calculate_rewards(*args)
        self._active = active_completions(rewards[:, 0], self.num_generations or 1)
        self.signal = bool(self._active.any())
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """A rollout with advantages exactly 0 in groups whose rewards are equal.

        In float32 the mean of equal rewards is off by a rounding error, which the division by
        1e-4 and Adam's scaling blow up to full steps in a random direction.
        """
        rollout = super()._generate_and_score_completions(inputs)
        ids, mask = rollout["completion_ids"], rollout["completion_mask"].bool()
        kept = [row[used].tolist() for row, used in zip(ids, mask, strict=True)]
        check_ends(kept, self.ends, int(self.max_completion_length or 0))
        first = self.accelerator.process_index * len(inputs)
        active = self._active[first : first + len(inputs)]
        rollout["advantages"] = torch.where(active, rollout["advantages"], 0.0)
        return rollout

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._policy_logps = found[0].detach()
        return found

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)
        if "old_per_token_logps" in inputs:
            change = (self._policy_logps - inputs["old_per_token_logps"]).abs()
            largest = (change * inputs["completion_mask"]).max()
            everywhere: Any = self.accelerator.gather(largest)
            found = self._metrics["train"][RATIO]  # of a step's micro-batches, the largest
            found[:] = [max([*found, everywhere.max().item()])]
        return loss

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        sampler.__class__ = EpochSampler
        return sampler

    def _load_from_checkpoint(self, checkpoint: str, model: Any = None) -> None:
        """With a `ref` adapter in the checkpoint, transformers 5.17 skips the trained one."""
        super()._load_from_checkpoint(checkpoint, model)
        model = self.model if model is None else model
        if "ref" in model.peft_config:
            model.load_adapter(checkpoint, "default", is_trainable=True)
            model.set_adapter("default")
        check_loaded(model, Path(checkpoint))

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Rendered prompts hold their special tokens already; adding them would double a BOS."""
        tokenizer: Any = self.processing_class
        return tokenizer(text=prompts, add_special_tokens=False)["input_ids"], None, {}


def active_completions(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """Whether each completion's group has rewards that differ; NaN is a missing reward.

    Args:
        rewards: shape (completions,), group-major.
    Returns a bool tensor of the same shape.
    """
    groups = rewards.view(-1, group_size)
    highest = groups.nan_to_num(nan=-torch.inf).amax(dim=1)
    lowest = groups.nan_to_num(nan=torch.inf).amin(dim=1)
    return (highest - lowest > SPREAD).repeat_interleave(group_size)


def _random_states() -> tuple[Any, Any, torch.Tensor, list[torch.Tensor]]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda


def _restore(states: tuple[Any, Any, torch.Tensor, list[torch.Tensor]]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    if states[3]:
        torch.cuda.set_rng_state_all(states[3])
