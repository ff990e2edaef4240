"""Checkpoints in the work folder: which ones are whole, and stopping between them."""

import logging
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from unlearning_grid.errors import UserError
from unlearning_grid.runtime.atomic import read_json, write_json
from unlearning_grid.runtime.job import Job
from unlearning_grid.train import processes

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
COMPLETE = "complete.json"  # in a checkpoint, written last: whose it is


def checkpoint_step(checkpoint: Path) -> int:
    """Optimizer step of a checkpoint folder."""
    return int(checkpoint.name.rpartition("-")[2])


def latest_checkpoint(job: Job, skip: Collection[int] = ()) -> Path | None:
    """The last checkpoint of this very job that was written to its end, or None.

    Args:
        skip: steps at which an unbroken run stops. The trainer looks at its limits only after a
            step, so a run resumed right there would make one step too many.
    Raises UserError when it was made from another spec or other inputs.
    """
    whole = [mark.parent for mark in (job.work / CHECKPOINTS).glob(f"checkpoint-*/{COMPLETE}")]
    kept = [checkpoint for checkpoint in whole if checkpoint_step(checkpoint) not in skip]
    last = max(kept, key=checkpoint_step, default=None)
    if last is None:
        return None
    mark = read_json(last / COMPLETE) or {}
    if mark.get("key") != job.work.name:
        raise UserError(
            f"{last} belongs to another run (key {mark.get('key')}, this one has "
            f"{job.work.name}); delete {last.parent}"
        )
    if mark["processes"] != job.processes:
        log.warning(
            "%s was written by %s processes, this run has %s: its random states differ, and its "
            "samples will not be those of an unbroken run",
            *(last, mark["processes"], job.processes),
        )
    return last


class Checkpoints(TrainerCallback):
    """Marks finished checkpoints, saves and stops when asked to, reports progress.

    A kill in the middle of a save leaves a folder without the mark, which is never resumed from.
    A stop falls on a multiple of `every` steps: a GRPO rollout is used for that many steps, and a
    run resumed in between would repeat half of it.
    """

    def __init__(self, job: Job, every: int = 1, seconds_between_lines: float = 20.0) -> None:
        self.job = job
        self.every = every
        self.pause = seconds_between_lines
        self.began: tuple[float, int] | None = None
        self.said = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.began = (time.monotonic(), state.global_step)
        self._tell(state)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.job.checkpoint_guard()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        between = state.global_step % self.every == 0
        if between and any(processes.gather([self.job.stop_requested])):
            control.should_save = True
            control.should_training_stop = True
        self._progress(state)
        self._tell(state)
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        processes.wait()  # for the random states of the others
        if processes.is_main():
            mark = {"key": self.job.work.name, "processes": self.job.processes}
            write_json(folder / COMPLETE, mark)
        processes.wait()

    def _tell(self, state: Any) -> None:
        if processes.is_main():
            self.job.progress(state.global_step, state.max_steps, "steps")

    def _progress(self, state: Any) -> None:
        now = time.monotonic()
        assert self.began is not None
        done = state.global_step - self.began[1]
        if now - self.said < self.pause or not done:
            return
        self.said = now
        rate = (now - self.began[0]) / done
        left = rate * (state.max_steps - state.global_step)
        last = _last_reward(state.log_history)
        log.info(
            "step %d of %d, %.1f s a step, %.0f s left%s",
            state.global_step,
            state.max_steps,
            rate,
            left,
            last,
        )


def _last_reward(history: list[dict[str, Any]]) -> str:
    values = [line["reward"] for line in history if line.get("reward") is not None]
    return f", reward {values[-1]:.2f}" if values else ""
