"""What the processes of one run agree on. In a run of one process everything is local."""

import os
from datetime import timedelta
from typing import Any

from unlearning_grid.errors import UserError

# One process may wait for a judge that long; the others meet it after that.
PATIENCE = timedelta(hours=2)


def join(processes: int) -> None:
    """Meet the other processes of this run and take one device each. Call before loading models.

    Raises UserError when GPUs and processes do not fit together.
    """
    import torch

    check_devices(processes, torch.cuda.device_count())
    if processes < 2:
        return
    from accelerate import PartialState

    from unlearning_grid.models.load import device

    cpu = device() == "cpu"
    if cpu:  # accelerate says "cpu:0", to which torch cannot load a resumed run's optimizer
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState(cpu=cpu, timeout=PATIENCE)


def check_devices(processes: int, gpus: int) -> None:
    """Raise UserError unless each process has one GPU and no more, or none has."""
    if gpus and gpus != processes:
        raise UserError(
            f"{gpus} GPUs are visible to {processes} process(es) of a training, which uses one "
            "each; set resource `processes` of rule train_grpo to that number, or "
            "CUDA_VISIBLE_DEVICES to the GPUs to use"
        )


def is_main() -> bool:
    """Whether this process writes files: the first, or the only one."""
    from accelerate import PartialState

    return PartialState().is_main_process


def gather(items: list[Any]) -> list[Any]:
    """The items of every process, in the order of their ranks, in every process."""
    from accelerate.utils import gather_object

    return gather_object(items)


def wait() -> None:
    """Go on when every process has come here."""
    from accelerate import PartialState

    PartialState().wait_for_everyone()
