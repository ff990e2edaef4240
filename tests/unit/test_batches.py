"""Batches that fit: the estimate by hand, and what happens when memory runs out all the same."""

import logging
import weakref
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from unlearning_grid.errors import UserError
from unlearning_grid.models import batches
from unlearning_grid.models.batches import in_batches, padded, rows_that_fit


def full() -> Exception:
    import torch

    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Machine:
    """Runs batches of at most `room` items and remembers every call."""

    def __init__(self, room: int, error: Exception | None = None) -> None:
        self.room, self.error = room, error or full()
        self.sizes: list[int] = []
        self.finished: list[int] = []

    def run(self, batch: list[int]) -> None:
        self.sizes.append(len(batch))
        if len(batch) > self.room:
            raise self.error
        self.finished += batch


def test_out_of_memory_halves_and_goes_on_with_the_same_items(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine(room=5)
    with caplog.at_level(logging.INFO):
        in_batches(range(18), 16, machine.run)
    assert machine.sizes == [16, 8, 4, 4, 4, 4, 2]
    assert machine.finished == list(range(18))
    reason = "CUDA out of memory. Tried to allocate 2.00 GiB."
    assert [record.getMessage() for record in caplog.records] == [
        f"out of memory with 16 rows; going on with 8 ({reason})",
        f"out of memory with 8 rows; going on with 4 ({reason})",
    ]


def test_a_short_batch_is_halved_from_its_own_length() -> None:
    machine = Machine(room=5)
    in_batches(range(10), 64, machine.run)
    assert machine.sizes == [10, 5, 5]


def test_one_row_that_does_not_fit_is_the_users_to_solve() -> None:
    machine = Machine(room=0)
    with pytest.raises(UserError, match=r"^batch_size: .*smaller model, or a GPU or machine with"):
        in_batches(range(3), 2, machine.run)
    assert machine.sizes == [2, 1] and machine.finished == []


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("std::bad_alloc: can't allocate memory"),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception) -> None:
    machine = Machine(room=2, error=error)
    in_batches(range(4), 4, machine.run)
    assert machine.sizes == [4, 2, 2]


def test_the_type_is_enough() -> None:
    import torch

    machine = Machine(room=2, error=torch.OutOfMemoryError("in words of its own"))
    in_batches(range(4), 4, machine.run)
    assert machine.sizes == [4, 2, 2]


def test_the_cpu_allocators_own_error_counts() -> None:
    """Four petabytes: more than any machine's address space gives."""
    import torch

    sizes: list[int] = []

    def run(batch: list[int]) -> None:
        sizes.append(len(batch))
        torch.empty(2**52 if len(batch) > 1 else 1, dtype=torch.uint8)

    in_batches(range(2), 2, run)
    assert sizes == [2, 1, 1]


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("x"), KeyError("x")])
def test_other_errors_pass_through_at_once(error: Exception) -> None:
    machine = Machine(room=1, error=error)
    with pytest.raises(type(error)):
        in_batches(range(4), 4, machine.run)
    assert machine.sizes == [4]


def test_nothing_of_a_failed_batch_is_alive_at_the_next_try() -> None:
    """A kept exception would hold the frames, and the frames the tensors."""
    import torch

    made: list[weakref.ref] = []

    def run(batch: list[int]) -> None:
        assert not any(reference() is not None for reference in made)
        large = torch.zeros(3)
        made.append(weakref.ref(large))
        if len(batch) > 1:
            raise full()

    in_batches(range(4), 4, run)
    assert len(made) == 6  # 4, 2, then 1 four times


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size: 0"):
        in_batches([1], 0, lambda batch: None)


def test_a_line_every_half_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(batches, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def run(batch: list[int]) -> None:
        clock[0] += 20

    with caplog.at_level(logging.INFO):
        in_batches(range(10), 2, run, "prompts")
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["4 of 10 prompts, 60 s left", "8 of 10 prompts, 20 s left"]


def test_padding() -> None:
    ids, mask = padded([[5, 6, 7], [8]], 0, "left", "cpu")
    assert ids.tolist() == [[5, 6, 7], [0, 0, 8]] and mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    ids, mask = padded([[8], [5, 6, 7]], 0, "right", "cpu")
    assert ids.tolist() == [[8, 0, 0], [5, 6, 7]] and mask.tolist() == [[1, 0, 0], [1, 1, 1]]
    ids, _ = padded([[8, 9], [5, 6, 7]], None, "left", "cpu")
    assert ids.tolist() == [[8, 8, 9], [5, 6, 7]]
    with pytest.raises(ValueError, match="'middle' is not left or right"):
        padded([[1]], 0, "middle", "cpu")


def model(device: str, **changed: Any) -> Any:
    import torch

    settings = {
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "vocab_size": 1000,
    } | changed
    config = SimpleNamespace(**settings)
    config.get_text_config = lambda: config
    return SimpleNamespace(config=config, dtype=torch.float16, device=torch.device(device))


# By hand, 10 tokens in float16 with one position of logits: cache 2*3*2*8 = 96 numbers a token,
# activations 8*32 + 3*64 = 448; (544 * 10 + 10 * 10) * 2 + 4 * 1000 = 15,080 bytes a row.
ROW = 15_080


@pytest.mark.parametrize(
    "available, rows",
    [
        (2 * ROW * 7, 7),
        (2 * ROW * 7 - 2, 6),
        (0, 1),
        (2 * ROW * 10_000, 64),
    ],
)
def test_rows_that_fit_on_a_cpu(monkeypatch: Any, available: int, rows: int) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    assert rows_that_fit(model("cpu"), 10, 1) == rows


def test_rows_that_fit_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free memory is the driver's and what torch holds without using it."""
    import torch

    free = [2 * ROW * 100]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[0], 10**12))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2 * ROW * 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 * ROW * 10)
    assert rows_that_fit(model("cuda"), 10, 1) == 120
    free[0] = 10**11
    assert rows_that_fit(model("cuda"), 10, 1) == 256


def test_a_config_may_state_its_head_size_or_leave_out_grouped_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = SimpleNamespace(available=2 * ROW * 7)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: room)
    # 2*3*2*16 = 192 numbers of cache: 17,000 bytes a row; 4 heads of 8 come to the same.
    assert rows_that_fit(model("cpu", head_dim=16), 10, 1) == 6
    assert rows_that_fit(model("cpu", num_key_value_heads=None), 10, 1) == 6
