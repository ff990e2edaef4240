"""GRPO with rollouts by vLLM inside the trainer's process. Imports torch and TRL, like trainer.py.

Used with grpo.use_vllm only. TRL merges the adapter into the base, gives the engine all weights and
takes the adapter out again, once before each rollout.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from accelerate.utils import set_seed
from peft.tuners.tuners_utils import BaseTunerLayer
from trl.generation import vllm_generation

from unlearning_grid.train.checks import check_engine
from unlearning_grid.train.trainer import StudyTrainer

# A policy nearer to its reference (root mean square, nats per token) has no update to speak of.
NO_UPDATE = 1e-6


class EngineTrainer(StudyTrainer):
    """StudyTrainer whose rollouts come from an engine that is checked against it each time.

    Args:
        where: the base model's location, revision and dtype, for the engine's own copy.
    """

    def __init__(self, where: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        with _engine_of(where):
            super().__init__(*args, **kwargs)
        self._dtype: str = where["dtype"]
        found = self.vllm_generation.llm.llm_engine.model_config.dtype
        if found != getattr(torch, self._dtype):
            raise RuntimeError(f"the engine computes in {found}, the trainer in {self._dtype}")
        # The engine's start seeds everything with 0. A resumed run takes its states from the
        # checkpoint after this, when it begins to train.
        set_seed(self.args.seed, device_specific=True)
        model: Any = self.model
        weights = [base_weight(m) for m in model.modules() if isinstance(m, BaseTunerLayer)]
        self._base = [(weight, weight.detach().to("cpu", copy=True)) for weight in weights]

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        """Sample, then undo what merging and unmerging left in the base by rounding.

        The base is the KL reference of a cold run, and part of every later policy.
        """
        found = super()._generate_single_turn(*args, **kwargs)
        with torch.no_grad():
            for weight, kept in self._base:
                weight.copy_(kept)
        return found

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        rollout = super()._generate_and_score_completions(inputs)
        missing = {"sampling_per_token_logps", "old_per_token_logps"} - rollout.keys()
        if missing:
            raise RuntimeError(f"a rollout lacks {sorted(missing)}: its engine cannot be checked")
        self._compare(rollout)
        return rollout

    def _compare(self, rollout: Mapping[str, torch.Tensor]) -> None:
        """Log how far the engine is from the trainer on the rollout's tokens, and check it.

        update_share is the part of the trainer's distance to the reference that the engine has
        too, by least squares: 1 for the same weights, 0 for an engine that never got an update.
        It says nothing while that distance is within the precision's rounding.
        """
        mask, own = rollout["completion_mask"].bool(), rollout["old_per_token_logps"]
        gap = torch.where(mask, rollout["sampling_per_token_logps"] - own, 0.0).double()
        learned = torch.where(mask, own - rollout.get("ref_per_token_logps", own), 0.0).double()
        sums = [mask.sum().double(), gap.abs().sum(), (learned * gap).sum(), (learned**2).sum()]
        everywhere: Any = self.accelerator.gather(torch.stack(sums)[None])
        largest: Any = self.accelerator.gather(gap.abs().max())
        tokens, total, shared, square = everywhere.sum(dim=0).tolist()
        found = {"logp_gap_mean": total / tokens, "logp_gap_max": largest.max().item()}
        if square > tokens * NO_UPDATE**2:
            found["update_share"] = 1 + shared / square
        for name, value in found.items():
            self._metrics["train"][f"engine/{name}"].append(value)
        step = self.state.global_step
        check_engine(step, found["logp_gap_mean"], found["logp_gap_max"], self._dtype)


def base_weight(layer: Any) -> torch.Tensor:
    """The base model's weight under an adapter's layer."""
    return layer.get_base_layer().weight


@contextmanager
def _engine_of(where: Mapping[str, Any]) -> Iterator[None]:
    """Inside, TRL's engine is given the stated precision and revision.

    TRL passes neither: vLLM would turn a float32 model into bfloat16 and read the newest revision
    of config and tokenizer. There is no option for it; patching the one name that TRL calls lasts
    for the construction only, and fails loudly if the name moves.
    """
    module: Any = vllm_generation
    stock = module.LLM
    revision = where["revision"]
    module.LLM = partial(
        stock, dtype=where["dtype"], revision=revision, tokenizer_revision=revision
    )
    try:
        yield
    finally:
        module.LLM = stock
