"""Leases: never two workers on one folder, and no work lost to a dead one."""

import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from unlearning_grid.runtime.lease import Lease, LeaseLost, is_held

SPAWN = multiprocessing.get_context("spawn")
FAST = {"heartbeat": 0.1, "stale_after": 1.5}


def _count_up(folder: Path, rounds: int) -> None:
    """Read, wait, write: loses counts unless the lease really excludes."""
    for _ in range(rounds):
        lease = Lease(folder / "work", **FAST)
        lease.acquire()
        counter = folder / "counter"
        value = int(counter.read_text())
        time.sleep(0.002)
        counter.write_text(str(value + 1))
        lease.release()


def _hold(folder: Path, ready: Path) -> None:
    lease = Lease(folder, **FAST)
    lease.acquire()
    ready.touch()
    time.sleep(60)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_free_folder_is_ours_at_once_and_again_after_release(tmp_path):
    first = Lease(tmp_path / "w", **FAST)
    assert first.acquire() and is_held(tmp_path / "w")
    first.check()
    first.release()
    first.release()
    assert not is_held(tmp_path / "w")
    second = Lease(tmp_path / "w", **FAST)
    assert second.acquire()
    second.release()
    assert len(list((tmp_path / "w").glob("lease-*.json"))) == 1


def test_four_processes_lose_no_count(tmp_path):
    (tmp_path / "counter").write_text("0")
    workers = [SPAWN.Process(target=_count_up, args=(tmp_path, 15)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert (tmp_path / "counter").read_text() == "60"


def test_a_killed_holder_on_this_host_is_noticed_at_once(tmp_path):
    holder = SPAWN.Process(target=_hold, args=(tmp_path / "w", tmp_path / "ready"))
    holder.start()
    _wait_for(tmp_path / "ready")
    assert is_held(tmp_path / "w")
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    began = time.monotonic()
    lease = Lease(tmp_path / "w", heartbeat=0.1, stale_after=600)
    assert lease.acquire()
    assert time.monotonic() - began < 5
    lease.release()


def test_a_silent_holder_elsewhere_is_replaced_after_the_waiting_time(tmp_path):
    (tmp_path / "lease-3.json").write_text(json.dumps({"nonce": "x", "host": "elsewhere"}))
    began = time.monotonic()
    lease = Lease(tmp_path, **FAST)
    assert lease.acquire()
    assert time.monotonic() - began >= FAST["stale_after"]
    assert [path.name for path in tmp_path.glob("lease-*.json")] == ["lease-4.json"]
    lease.release()


def test_a_live_holder_elsewhere_is_waited_for(tmp_path):
    """Signs of life from a host whose processes we cannot see keep the lease."""
    stop = threading.Event()

    def beat() -> None:
        beats = 0
        while not stop.wait(0.1):
            beats += 1
            content = {"nonce": "x", "host": "elsewhere", "beats": beats}
            temporary = tmp_path / "new"
            temporary.write_text(json.dumps(content))
            os.replace(temporary, tmp_path / "lease-1.json")

    (tmp_path / "lease-1.json").write_text(json.dumps({"nonce": "x", "host": "elsewhere"}))
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        deadline = time.monotonic() + 2 * FAST["stale_after"]
        lease = Lease(tmp_path, **FAST)
        assert lease.acquire(give_up=lambda: time.monotonic() > deadline) is False
    finally:
        stop.set()
        thread.join()


def test_a_suspended_holder_finds_out_and_stops(tmp_path):
    old = Lease(tmp_path, heartbeat=60, stale_after=60)
    old.acquire()
    content = json.loads((tmp_path / "lease-1.json").read_text())
    (tmp_path / "lease-2.json").write_text(json.dumps(content | {"nonce": "other"}))
    with pytest.raises(LeaseLost, match="taken over"):
        old.check()
    old.release()
    assert json.loads((tmp_path / "lease-2.json").read_text())["nonce"] == "other"


def test_an_old_look_at_the_folder_wins_nothing(tmp_path):
    """A waiter that judged lease 1 stale may not create lease 2 when 5 is the holder's."""
    holder = Lease(tmp_path, **FAST)
    holder._create(5)
    late = Lease(tmp_path, **FAST)
    assert late._create(2) is False
    holder.check()
    assert [path.name for path in tmp_path.glob("lease-*.json")] == ["lease-5.json"]
    holder.release()
