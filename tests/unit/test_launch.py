"""A stage in several processes: one result, one error, one end for all of them."""

import json
import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from process_stages import runs, wait_for
from unlearning_grid.errors import UserError
from unlearning_grid.runtime import launch
from unlearning_grid.runtime.job import Interrupted, Job
from unlearning_grid.runtime.launch import check_processes, run_processes
from unlearning_grid.runtime.lease import Lease, LeaseLost
from unlearning_grid.runtime.stage import Request, run_stage
from unlearning_grid.spec.canonical import canonical

SPAWN = multiprocessing.get_context("spawn")
NAMES = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Workers find the stages of this test, and nobody waits long for a process that hangs."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(launch, "GRACE", 0.5)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def job(tmp_path):
    """A job of two processes that holds its lease."""
    lease = Lease(tmp_path / "w", heartbeat=60)
    lease.acquire()
    yield make_job(tmp_path / "w", lease)
    lease.release()


def make_job(work: Path, lease: Lease, **settings) -> Job:
    spec = {"cell": {"target": "nobody"}, "settings": settings}
    return Job(spec, {}, {}, work, lease, judge_requests=16, processes=2)


def ended(*pids: int) -> bool:
    """Whether these processes are gone, at once or within two seconds."""
    deadline = time.monotonic() + 2
    while any(runs(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_every_process_gets_the_job_and_its_place_and_the_first_ones_facts_count(tmp_path):
    spec = {"stage": "s", "cell": {"target": "é"}, "code": "c", "env": "e"}
    folder = tmp_path / "r"
    run_stage(
        Request(
            load_stage=lambda: lambda job: run_processes(job, "process_stages:describe"),
            spec_text=canonical(spec | {"settings": {"names": NAMES}}),
            inputs={"up": Path("a/rows.jsonl"), "many": [Path("b/c"), Path("d")]},
            outputs={"data": folder / "data.txt"},
            folder=folder,
            keep_result=False,
            judge_requests=3,
            processes=2,
            report_to="tensorboard",
            many=True,
        )
    )
    run = json.loads((folder / "run.json").read_text())
    assert run["facts"] == {"rank": 0}
    assert [a["event"] for a in run["attempts"]] == ["start", "end"]
    assert (folder / "data.txt").read_text() == "made"


def test_what_a_process_sees(job):
    job.spec["settings"]["names"] = NAMES
    job.inputs = {"up": Path("a/rows.jsonl"), "many": [Path("b/c"), Path("d")]}
    assert run_processes(job, "process_stages:describe") == {"rank": 0}
    seen = [json.loads((job.work / f"seen-{rank}.json").read_text()) for rank in range(2)]
    for rank, process in enumerate(seen):
        place = process.pop("environment")
        assert place.pop("MASTER_PORT").isdigit()
        assert place == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": "2",
        }
    assert seen[0] == seen[1]
    assert seen[0]["asked"] == [8, 2, "none"] and seen[0]["cell"] == {"target": "nobody"}
    assert seen[0]["inputs"] == {name: str(value) for name, value in job.inputs.items()}
    assert not (job.work / "processes").exists()


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (("UserError", "no such term"), UserError, "^no such term$"),
        (("LeaseLost", "taken over by x"), LeaseLost, "^taken over by x$"),
        (("ValueError", "shape (2, 3)"), RuntimeError, r"^ValueError: shape \(2, 3\)$"),
        (("killed", ""), RuntimeError, "^process 1 of 2 was ended by SIGKILL and left no"),
    ],
)
def test_one_that_fails_ends_all_with_its_error(job, error, kind, text):
    job.spec["settings"]["error"] = error
    began = time.monotonic()
    with pytest.raises(kind, match=text) as caught:
        run_processes(job, "process_stages:fail")
    assert type(caught.value) is kind
    assert time.monotonic() - began < 20, "the other one would sleep for a minute"
    if error[0] != "killed":
        assert 'raise {"UserError"' in str(caught.value.__cause__), "where it was raised"
    assert ended(*wait_for(job.work / "started-0", job.work / "started-1"))


@pytest.mark.parametrize(
    ("killed", "text"),
    [(False, "^the judge does not answer$"), (True, "ended by SIGKILL and left")],
)
def test_what_failed_first_is_the_error(job, killed, text):
    """The other's end shows as an error here, too, milliseconds later."""
    job.spec["settings"]["killed"] = killed
    with pytest.raises((UserError, RuntimeError), match=text):
        run_processes(job, "process_stages:follow")


def test_a_result_counts_when_a_process_dies_on_its_way_out(job, caplog):
    assert run_processes(job, "process_stages:end_badly") == {"rank": 0}
    assert "had finished and then ended with status -11" in caplog.text


def _run(work: Path, stage: str) -> None:
    """The stage process: says how it ended, in a file."""
    lease = Lease(work, heartbeat=60)
    lease.acquire()
    try:
        run_processes(make_job(work, lease), f"process_stages:{stage}")
    except Exception as error:
        (work / "error.json").write_text(json.dumps([type(error).__name__, str(error)]))
    lease.release()


@pytest.fixture
def stage(tmp_path):
    """Starts a stage process; returns it, its work folder and the ids of its two workers."""
    started = []

    def start(name: str):
        process = SPAWN.Process(target=_run, args=(tmp_path / "w", name))
        process.start()
        started.append(process)
        pids = wait_for(tmp_path / "w/started-0", tmp_path / "w/started-1")
        assert process.pid is not None
        return process, tmp_path / "w", pids

    yield start
    for process in started:
        process.kill()
        process.join()


def test_sigterm_reaches_all_and_each_finishes_its_step(stage):
    process, work, pids = stage("finish_step")
    os.kill(process.pid, signal.SIGTERM)
    process.join(10)
    assert process.exitcode == 0
    assert json.loads((work / "error.json").read_text()) == [
        Interrupted.__name__,
        "saved at step 4 of 6; run again to resume",
    ]
    assert wait_for(work / "saved-0", work / "saved-1") == pids
    assert ended(*pids)


def test_sigterm_before_there_is_anything_to_save_ends_all(stage):
    process, work, pids = stage("unwind")
    os.kill(process.pid, signal.SIGTERM)
    process.join(10)
    assert json.loads((work / "error.json").read_text())[0] == Interrupted.__name__
    assert ended(*pids)


@pytest.mark.parametrize("name", ["hang", "step_for_ever"])
def test_none_outlives_a_stage_process_that_is_killed(stage, name):
    process, _, pids = stage(name)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert ended(*pids)


def take_over(work: Path) -> None:
    """What another worker does that has seen no sign of life of the holder."""
    content = json.loads((work / "lease-1.json").read_text())
    (work / "lease-2.json").write_text(json.dumps(content | {"nonce": "other"}))


def test_a_lease_taken_over_ends_the_processes_by_their_own_look(stage):
    process, work, pids = stage("step_for_ever")
    take_over(work)
    process.join(4)  # sooner than the stage process looks
    name, text = json.loads((work / "error.json").read_text())
    assert name == LeaseLost.__name__ and "taken over by" in text
    assert ended(*pids)


def test_a_lease_taken_over_ends_processes_that_hang(job, monkeypatch):
    monkeypatch.setattr(launch, "LOOK_AT_LEASE", 0.2)
    take_over(job.work)
    with pytest.raises(LeaseLost, match="taken over by"):
        run_processes(job, "process_stages:hang")


def test_a_witness_knows_whether_its_parent_lives(tmp_path):
    lease = Lease(tmp_path / "w")
    lease.acquire()
    with pytest.raises(LeaseLost, match="is gone"):
        lease.witness().check()  # this process is not its own parent
    lease.release()


def test_a_reserved_port_is_for_the_first_process_alone():
    with launch._reserved_port() as port, launch._reserved_port() as other, socket.socket() as one:
        assert port != other
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("", port))
        one.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


@pytest.mark.parametrize("value", [0, -1, "2", True, 1.5, None])
def test_what_is_no_number_of_processes_is_refused(value):
    with pytest.raises(UserError, match="resource processes: .* set it to the number of GPUs"):
        check_processes(value, many=True)


def test_processes_need_a_stage_that_shares_its_work_and_as_many_gpus(monkeypatch):
    assert check_processes(1, many=False) == 1 and check_processes(4, many=True) == 4
    with pytest.raises(UserError, match="resource processes: 2, but this rule runs in one"):
        check_processes(2, many=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert check_processes(1, many=True) == 1
    with pytest.raises(UserError, match="may use 1 .CUDA_VISIBLE_DEVICES=3.; ask for a GPU per"):
        check_processes(2, many=True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert check_processes(2, many=True) == 2


def test_a_bad_resource_leaves_its_reason_beside_the_outputs(tmp_path):
    bad = Request(lambda: lambda job: None, _spec(), {}, {}, tmp_path, processes="two")
    with pytest.raises(UserError, match="'two' is no number"):
        run_stage(bad)
    assert json.loads((tmp_path / "failure.json").read_text())["error"] == "UserError"
    bad = Request(lambda: lambda job: None, _spec(), {}, {}, tmp_path, report_to="mlflow")
    with pytest.raises(UserError, match="resource report_to: 'mlflow' is none of none, tensor"):
        run_stage(bad)


def _spec() -> str:
    return canonical({"stage": "s", "cell": {}, "settings": {}, "code": "c", "env": "e"})
