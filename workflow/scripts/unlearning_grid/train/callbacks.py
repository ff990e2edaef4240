"""GRPO callbacks. Imports transformers: import it inside functions."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from unlearning_grid.runtime.atomic import remove
from unlearning_grid.train import processes
from unlearning_grid.train.checks import RATIO, check_first_kl, check_gradient, check_ratio
from unlearning_grid.train.lora import save_adapter

if TYPE_CHECKING:
    from unlearning_grid.train.trainer import StudyTrainer


class NoLearning(TrainerCallback):
    """Stops a run whose groups carried no signal in the first epoch (paper appendix D.3.2).

    Args:
        step: optimizer steps after which it is judged, once.
        fires: judges, from the rewards on disk.
    """

    def __init__(self, step: int, fires: Callable[[], bool]) -> None:
        self.step = step
        self.fires = fires
        self.stopped = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if state.global_step == self.step and self.fires():
            self.stopped = True
            control.should_training_stop = True
        return control


class Health(TrainerCallback):
    """Fails a run at the step at which it stops being what it says.

    Args:
        reference: what the run's KL reference is; None without a KL term.
        dtype: precision of the base model.
        reuse: optimizer steps per rollout.
    """

    def __init__(
        self, trainer: "StudyTrainer", reference: str | None, dtype: str, reuse: int
    ) -> None:
        self.trainer = trainer
        self.reference = reference
        self.dtype = dtype
        self.reuse = reuse
        self.gradient = 0.0  # of the rollout's first update, if it carried signal

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if logs is None or "loss" not in logs:
            return  # the summary at the end
        step, first_pass = state.global_step, state.global_step % self.reuse == 1 % self.reuse
        if step == 1 and self.reference:
            check_first_kl(logs.get("kl"), self.dtype, self.reference)
        norm = logs.get("grad_norm")
        check_gradient(step, norm, self.trainer.signal and first_pass)
        if first_pass:
            self.gradient = float(norm or 0.0) if self.trainer.signal else 0.0
        else:
            check_ratio(step, logs.get(RATIO), self.gradient)


class Gradients(TrainerCallback):
    """Fails a supervised run whose loss does not reach the adapter."""

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if logs is not None and "loss" in logs:
            check_gradient(state.global_step, logs.get("grad_norm"), signal=True)


class KeepAdapters(TrainerCallback):
    """Saves the adapter every n steps, for diagnostics over the course of training.

    They are kept in the base model's precision, in which the trainer computes with them, too.
    """

    def __init__(self, folder: Path, every: int, base: str | None, dtype: str) -> None:
        self.folder = folder
        self.every = every
        self.base = base
        self.dtype = dtype

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every or not processes.is_main():
            return
        target = self.folder / f"step-{state.global_step:06d}"
        partial = self.folder / f".{target.name}"
        remove(partial)
        save_adapter(kwargs["model"], partial, self.base, self.dtype)
        remove(target)
        partial.rename(target)
