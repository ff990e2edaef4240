"""GRPO callbacks. Imports transformers: import it inside functions."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from unlearning_grid.runtime.atomic import remove
from unlearning_grid.train.lora import save_adapter

if TYPE_CHECKING:
    from unlearning_grid.train.grpo import Run


class NoLearning(TrainerCallback):
    """Stops a run whose groups carried no signal in the first epoch (paper appendix D.3.2).

    Judged once, after the last update of the epoch's last rollout and before the next rollout, from
    the rewards on disk.
    """

    def __init__(self, run: "Run") -> None:
        self.run = run

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if state.global_step == self.run.stop_step and self.run.fires():
            self.run.stopped = True
            control.should_training_stop = True
        return control


class KeepAdapters(TrainerCallback):
    """Saves the adapter every n steps, for diagnostics over the course of training."""

    def __init__(self, folder: Path, every: int, base: str | None) -> None:
        self.folder = folder
        self.every = every
        self.base = base

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every:
            return
        target = self.folder / f"step-{state.global_step:06d}"
        partial = self.folder / f".{target.name}"
        remove(partial)
        save_adapter(kwargs["model"], partial, self.base)
        remove(target)
        partial.rename(target)
