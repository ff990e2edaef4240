"""TRL's GRPO trainer, with exact resumption. Imports torch and TRL: import it inside functions."""

from typing import Any

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
