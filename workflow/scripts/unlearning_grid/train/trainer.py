"""TRL's GRPO trainer, with exact resumption. Imports torch and TRL: import it inside functions."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import RepeatSampler


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


class ResumableGRPOTrainer(GRPOTrainer):
    """GRPOTrainer whose resumed run equals an unbroken one, if it resumes between two rollouts."""

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._before_step = _random_states()
        self._tokens_before = self.state.num_input_tokens_seen
        return super().training_step(*args, **kwargs)

    def save_before_rollout(self) -> None:
        """Write the checkpoint from which the rollout under way can be sampled again, the same.

        For a run that must stop inside a rollout: weights and optimizer are still those of the last
        step; random states and the token count are put back to where they were before the sampling.
        """
        from unlearning_grid.train.checkpoints import COMPLETE

        folder = Path(str(self.args.output_dir)) / f"checkpoint-{self.state.global_step}"
        if not self.state.global_step or (folder / COMPLETE).exists():
            return  # nothing was learned yet, or it is there: never write over a whole one
        _restore(self._before_step)
        self.state.num_input_tokens_seen = self._tokens_before
        model: Any = self.model
        self._save_checkpoint(model, trial=None)
        self.callback_handler.on_save(self.args, self.state, self.control)

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

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """Rendered prompts hold their special tokens already; adding them would double a BOS."""
        tokenizer: Any = self.processing_class
        return tokenizer(text=prompts, add_special_tokens=False)["input_ids"], None, {}


def _random_states() -> tuple[Any, Any, torch.Tensor, list[torch.Tensor]]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda


def _restore(states: tuple[Any, Any, torch.Tensor, list[torch.Tensor]]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    if states[3]:
        torch.cuda.set_rng_state_all(states[3])
