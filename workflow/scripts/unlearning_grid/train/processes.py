"""What the processes of one run agree on. In a run of one process everything is local."""

from typing import Any


def join(processes: int) -> None:
    """Meet the other processes of this run and take one device each. Call before loading models."""
    if processes < 2:
        return
    from accelerate import PartialState

    from unlearning_grid.models.load import device

    PartialState(cpu=device() == "cpu")


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
