"""Batches that fit: a first size from the free memory, and half of it when memory runs out."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from unlearning_grid.errors import UserError

log = logging.getLogger(__name__)

SHARE = 0.5  # of the free memory; copies, fragments and other processes need the rest
MOST_ROWS = {"cuda": 256, "cpu": 64}
_NO_MEMORY = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")

Item = TypeVar("Item")


def rows_that_fit(model: Any, tokens_per_row: int, logits_per_row: int) -> int:
    """A first batch size from the memory that is free now, between 1 and 256 (CPU: 64).

    Bytes of a row of T tokens, with b bytes per weight:
        cache        2 * layers * kv_heads * head_dim * T * b
        activations  (8 * hidden + 3 * intermediate) * T * b, one layer's at a time
        attention    T * T * b, the mask
        logits       vocabulary * 4 * logits_per_row
    Half of the free memory is given away. It is an estimate: in_batches corrects it downwards.
    Free memory is the machine's; a job's own limit below that (cgroup) is not seen.
    """
    config = model.config.get_text_config()
    width = model.dtype.itemsize
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    cached = getattr(config, "num_key_value_heads", None) or heads
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    token = 2 * config.num_hidden_layers * cached * head + 8 * config.hidden_size + 3 * inner
    row = (token * tokens_per_row + tokens_per_row**2) * width
    row += config.vocab_size * 4 * logits_per_row
    return max(1, min(int(SHARE * _free(model.device)) // row, MOST_ROWS[_kind(model)]))


def in_batches(
    order: Sequence[Item], size: int, run: Callable[[list[Item]], None], what: str = "rows"
) -> None:
    """Call `run` on consecutive batches of `order`, none left out and none finished twice.

    A batch that runs out of memory is halved, and the smaller size is kept for the rest; so `run`
    may store its results only once it has them all. Every 30 s a line tells how far it is.

    Raises ValueError for a size below 1, UserError when one item alone does not fit.
    """
    if size < 1:
        raise ValueError(f"batch_size: {size} is below 1")
    done = 0
    began = last = time.monotonic()
    while done < len(order):
        batch = list(order[done : done + size])
        reason = _attempt(run, batch)
        if reason is not None:
            size = _halved(len(batch), reason)
            continue
        done += len(batch)
        if time.monotonic() - last > 30:
            last = time.monotonic()
            left = (len(order) - done) * (last - began) / done
            log.info("%d of %d %s, %.0f s left", done, len(order), what, left)


def _attempt(run: Callable[[list[Item]], None], batch: list[Item]) -> str | None:
    """What the allocator said if memory ran out, else None.

    Text, not the exception: its traceback would keep the failed batch's tensors alive.
    """
    try:
        run(batch)
    except Exception as error:
        if not out_of_memory(error):
            raise
        return (str(error) or type(error).__name__).splitlines()[0]
    return None


def _halved(size: int, reason: str) -> int:
    from accelerate.utils.memory import clear_device_cache

    clear_device_cache(garbage_collection=True)
    if size == 1:
        raise UserError(
            f"batch_size: out of memory with one row at a time ({reason}); take a smaller model, "
            "or a GPU or machine with more memory"
        )
    log.warning("out of memory with %d rows; going on with %d (%s)", size, size // 2, reason)
    return size // 2


def out_of_memory(error: Exception) -> bool:
    """Whether an exception says that memory ran out, on a GPU or on a CPU."""
    import torch
    from accelerate.utils.memory import should_reduce_batch_size

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    named = isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)
    return named or should_reduce_batch_size(error)


def padded(
    rows: Sequence[Sequence[int]], fill: int | None, side: str, device: Any
) -> tuple[Any, Any]:
    """Rows of token ids as one tensor and its mask: 1 for the rows' tokens, 0 for padding.

    Args:
        fill: the padding token; None takes each row's own first token.
        side: "left" or "right", where the padding stands.
    """
    import torch

    if side not in ("left", "right"):
        raise ValueError(f"side: {side!r} is not left or right")
    width = max(len(row) for row in rows)
    ids, mask = [], []
    for row in rows:
        gap = width - len(row)
        token = fill if fill is not None else row[0]
        parts = ([token] * gap, list(row)) if side == "left" else (list(row), [token] * gap)
        ids.append(parts[0] + parts[1])
        real = ([0] * gap, [1] * len(row)) if side == "left" else ([1] * len(row), [0] * gap)
        mask.append(real[0] + real[1])
    made = [torch.tensor(part, dtype=torch.long, device=device) for part in (ids, mask)]
    return made[0], made[1]


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode without gradients; the model's own mode comes back afterwards."""
    import torch

    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


def _kind(model: Any) -> str:
    return "cuda" if model.device.type == "cuda" else "cpu"


def _free(device: Any) -> int:
    """Bytes that can be allocated now; on a GPU with what torch holds and does not use."""
    if device.type != "cuda":
        import psutil

        return psutil.virtual_memory().available
    import torch

    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held
