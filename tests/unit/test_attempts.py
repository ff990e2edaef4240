"""The ledger of attempts: what each took, also of those that could not say so themselves."""

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from unlearning_grid.runtime import attempts, devices
from unlearning_grid.runtime.attempts import Attempt, attempts_of
from unlearning_grid.runtime.lease import Lease
from unlearning_grid.runtime.meter import METER
from unlearning_grid.runtime.stage import Request, run_stage
from unlearning_grid.spec.canonical import canonical

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def request(folder, stage, **settings):
    spec = {"stage": "train", "cell": {}, "settings": settings, "code": "c", "env": "e"}
    outputs = {"data": folder / "data.txt"}
    return Request(lambda: stage, canonical(spec), {}, outputs, folder)


def write(job):
    job.outputs["data"].write_text("made")


def fail(job):
    METER.add("audit", {"sent": 2, "input_tokens": 20})
    raise ValueError("no such thing")


def _ask_and_hang(folder: Path) -> None:
    def stage(job):
        job.lease.heartbeat = 0.1
        METER.add("audit", {"sent": 3, "input_tokens": 30, "output_tokens": 6})
        METER.flush()
        time.sleep(1.2)
        job.lease._write()  # a sign of life, about 1.2 s after the start
        (folder / "ready").touch()
        time.sleep(60)

    os.environ["CUDA_VISIBLE_DEVICES"] = "4,7"
    os.environ["SLURM_JOB_ID"] = "11"
    run_stage(request(folder, stage, x=1))


def kill_one(folder: Path) -> None:
    """An attempt with x=1 that lives about 1.2 s."""
    worker = SPAWN.Process(target=_ask_and_hang, args=(folder,))
    worker.start()
    deadline = time.monotonic() + 20
    while not (folder / "ready").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()


SPENT = {"audit": {"input_tokens": 30, "output_tokens": 6, "sent": 3}}


def check_killed(attempt: Attempt) -> None:
    assert attempt.outcome == "killed" and attempt.stage == "train" and attempt.gpus == 2.0
    assert attempt.seconds is not None and 1.1 <= attempt.seconds < 4
    assert attempt.gpu_hours == pytest.approx(2 * attempt.seconds / 3600)
    assert attempt.judges == SPENT


def test_a_killed_attempt_is_known_before_anybody_comes_after_it(tmp_path):
    kill_one(tmp_path)
    (killed,) = attempts_of(tmp_path)
    check_killed(killed)
    assert [line["event"] for line in attempts.read(tmp_path)] == ["start"]


@pytest.mark.parametrize("x", [1, 2], ids=["the same spec again", "another spec"])
def test_who_comes_after_a_killed_attempt_writes_down_its_end(tmp_path, x):
    kill_one(tmp_path)
    run_stage(request(tmp_path, write, x=x))
    lines = attempts.read(tmp_path)
    assert sorted(line.get("outcome", "start") for line in lines) == [
        "finished", "killed", "start", "start",
    ]  # fmt: skip
    killed, finished = attempts_of(tmp_path)
    check_killed(killed)
    assert (finished.outcome, finished.gpus, finished.judges) == ("finished", 0, {})
    assert not list(tmp_path.glob("work/*/meter-*"))
    assert attempts.died_without_a_word(tmp_path, killed.spec) == (x == 2)
    run_stage(request(tmp_path, write, x=3))  # nothing is counted twice
    assert [a.outcome for a in attempts_of(tmp_path)] == ["killed", "finished", "finished"]


def test_a_failed_attempt_keeps_what_it_spent_and_every_spec_keeps_its_attempts(tmp_path):
    with pytest.raises(ValueError):
        run_stage(request(tmp_path, fail, x=1))
    run_stage(request(tmp_path, write, x=1))
    run_stage(request(tmp_path, write, x=2))
    first, second, third = attempts_of(tmp_path)
    assert first.judges == {"audit": {"input_tokens": 20, "sent": 2}} and second.judges == {}
    assert [a.outcome for a in (first, second, third)] == ["failed", "finished", "finished"]
    assert first.spec == second.spec != third.spec
    assert all(a.seconds is not None and a.seconds < 5 and a.gpu_hours == 0 for a in (first, third))


def test_a_running_attempt_is_running(tmp_path):
    seen = []

    def look(job):
        seen.extend(attempts_of(tmp_path))
        write(job)

    run_stage(request(tmp_path, look))
    (running,) = seen
    assert running.outcome == "running" and running.seconds is not None and running.seconds < 5


def test_without_lease_and_end_the_time_is_unknown(tmp_path):
    """As older versions left it: their ledgers name no stage, no GPU, and their leases are gone."""
    old = {"event": "start", "host": "h", "key": "k", "nonce": "n", "spec": "s", "time": 1700000000}
    path = tmp_path / "work/attempts.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps(old) + "\n")
    assert attempts_of(tmp_path) == [
        Attempt("k", "s", "n", None, 1700000000, "killed", None, None, {})
    ]
    assert attempts_of(tmp_path)[0].gpu_hours is None


def test_a_holder_thought_dead_that_comes_back_has_the_last_word(tmp_path):
    ledger = attempts.Ledger(tmp_path, "k", "s", "n")
    with ledger.attempt("train", since=time.time()):
        attempts.note_killed(tmp_path / "work/k", {"n": time.time() + 100})
        assert [(a.outcome, a.seconds) for a in attempts_of(tmp_path)] == [
            ("killed", pytest.approx(100, abs=1))
        ]
    (back,) = attempts_of(tmp_path)
    assert back.outcome == "finished" and back.seconds is not None and back.seconds < 5


def test_a_line_that_was_cut_takes_no_other_with_it(tmp_path):
    run_stage(request(tmp_path, write, x=1))
    path = tmp_path / "work/attempts.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event": "sta')
    run_stage(request(tmp_path, write, x=2))
    assert [a.outcome for a in attempts_of(tmp_path)] == ["finished", "finished"]


def test_a_lease_tells_from_whom_it_was_taken_over_and_when_that_one_was_last_seen(tmp_path):
    dead = tmp_path / "lease-4.json"
    dead.write_text(json.dumps({"nonce": "dead", "released": True}))
    os.utime(dead, (1700000000, 1700000000))
    lease = Lease(tmp_path)
    lease.acquire()
    assert lease.gone == {"dead": 1700000000.0}
    assert lease.since is not None and abs(lease.since - time.time()) < 5
    lease.release()


GPU = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID")


@pytest.mark.parametrize(
    "visible, job, processes, devices_there, held",
    [
        ("3", "11", 1, 0, 1),
        ("0,2", "11", 2, 0, 2),
        ("GPU-aa,GPU-bb", "11", 1, 2, 2),  # both are kept from others
        (None, "11", 1, 8, 0),  # a CPU job on a node with GPUs
        ("NoDevFiles", "11", 1, 8, 0),
        ("", None, 1, 2, 0),
        ("-1", None, 1, 2, 0),
        (None, None, 1, 0, 0),
        ("0", None, 1, 2, None),  # a workstation: what is used is known at the end
        (None, None, 2, 2, 2),
        ("0", None, 1, 0, 0),  # no such device
    ],
)
def test_gpus_held(monkeypatch, tmp_path, visible, job, processes, devices_there, held):
    for name, value in zip(GPU, (visible, job), strict=True):
        if value is not None:
            monkeypatch.setenv(name, value)
    for number in range(devices_there):
        (tmp_path / f"nvidia{number}").touch()
    (tmp_path / "nvidiactl").touch()
    assert devices.held(processes, tmp_path) == held


@pytest.mark.parametrize("there, touched, used", [(True, True, 1), (True, False, 0), (False, 0, 0)])
def test_gpus_used_outside_slurm(monkeypatch, tmp_path, there, touched, used):
    """What torch says of this process stands in for a GPU, which no test machine has."""
    cuda = SimpleNamespace(is_available=lambda: there, is_initialized=lambda: touched)
    monkeypatch.setitem(__import__("sys").modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(devices, "held", lambda processes: None)
    with attempts.Ledger(tmp_path, "k", "s", "n").attempt("train", gpu_share=4):
        pass
    assert [a.gpus for a in attempts_of(tmp_path)] == [used / 4]


def test_jobs_that_share_a_gpu_hold_a_part_of_it(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    with attempts.Ledger(tmp_path, "k", "s", "n").attempt("train", gpu_share=4):
        pass
    assert [a.gpus for a in attempts_of(tmp_path)] == [0.25]


def test_garbage_in_a_ledger_is_left_out(tmp_path: Path) -> None:
    """Blocks of a power cut, and JSON that is no line of it."""
    path = tmp_path / "work" / "attempts.jsonl"
    path.parent.mkdir()
    start = {"key": "k", "spec": "s", "nonce": "n", "event": "start", "time": 1}
    path.write_bytes(b'[]\n\xff\x00\n{"key": "k"}\n' + json.dumps(start).encode() + b"\n")
    assert attempts.read(tmp_path) == [start]
