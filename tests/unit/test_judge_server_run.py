"""A judge served inside the cluster, as the one who serves it sees it."""

import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from judge_server import FAST
from judge_servers import (
    FOLDER,
    MODEL,
    REVISION,
    Running,
    announced,
    ask,
    asked,
    command,
    files_with,
    micro_with_server,
    right,
)
from modules import SCRIPTS
from unlearning_grid.errors import UserError
from unlearning_grid.remote import serving, transport
from unlearning_grid.remote.servers import mark_wanted, read_announcement
from unlearning_grid.remote.serving import Service, own_host, words_of
from unlearning_grid.runtime.atomic import write_json


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS))
    monkeypatch.setattr(transport, "PATIENCE", replace(FAST, server=5.0))
    return tmp_path


def children() -> list[psutil.Process]:
    """Stand-ins that this process started."""
    return [p for p in psutil.Process().children() if "served_judge.py" in " ".join(p.cmdline())]


def test_it_stops_when_nobody_needs_it_and_not_while_somebody_does() -> None:
    running = Running(idle=1.2)
    announced()
    began = time.monotonic()
    while time.monotonic() < began + 2.0:
        mark_wanted("big")
        time.sleep(0.1)
    assert running.thread.is_alive()
    assert running.join().ended == "nobody needed it for 0 min"
    assert time.monotonic() - began >= 3.0
    assert read_announcement("big") is None and not children()


def test_loading_is_no_idling() -> None:
    running = Running(idle=0.3, load=1.0)
    announced()
    assert running.join().ended == "nobody needed it for 0 min"


def test_asking_keeps_it_up(monkeypatch) -> None:
    monkeypatch.setattr("unlearning_grid.remote.servers.WANT_EVERY", 0.1)
    running = Running(idle=1.5, delay=0.5)
    announced()
    assert [v.labels for v in ask(*range(4), at_once=1)] == right(range(4))  # 2 s
    assert running.join().error is None


def test_a_second_one_says_where_the_first_is_and_leaves_it_alone() -> None:
    first = Running()
    at = announced()
    second = Running().join()
    assert isinstance(second.error, UserError)
    assert str(second.error) == f"judge server big runs already, at 127.0.0.1:{at.port}"
    assert announced() == at and len(children()) == 1
    assert first.stop().ended == "it was asked to"


def test_the_place_of_a_dead_host_is_taken_over() -> None:
    """A lease whose heartbeat does not move, with an announcement that nobody withdrew."""
    first = Running()
    dead = announced()
    first.stop()
    serving.announce(dead)
    lease = {"nonce": "n", "host": "elsewhere", "pid": 1, "started": 0.0, "beats": 7}
    write_json(FOLDER / "lease-9.json", lease | {"released": False})
    second = Running()
    assert announced(other_than=dead).port
    assert second.stop().error is None
    assert read_announcement("big") is None


def test_one_that_was_thought_dead_leaves_the_place_to_the_other() -> None:
    running = Running()
    mine = announced()
    theirs = serving.Announcement("big", MODEL, "elsewhere", 80, "k", "n")
    serving.announce(theirs)
    write_json(FOLDER / "lease-99.json", {"nonce": "n", "host": "elsewhere"})
    assert running.join().ended == "another server took over"
    assert read_announcement("big") == theirs != mine and not children()


def test_an_announcement_that_others_can_read_leaves_no_process() -> None:
    running = Running()
    announced()
    (FOLDER / "announcement.json").chmod(0o644)
    assert "chmod 600" in str(running.stop().error)
    assert not children()


@pytest.mark.parametrize(
    ("last_words", "fix"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", "--max-model-len"),
        ("ValueError: No available memory for the cache blocks.", "--tensor-parallel-size"),
        ("LocalEntryNotFoundError: outgoing traffic has been disabled", "ops prefetch"),
        ("api_server.py: error: unrecognized arguments: --quick", "change --command"),
        ("Segmentation fault", "ended with status 1 before it answered. The end of"),
    ],
)
def test_one_that_cannot_start_says_what_to_change(last_words: str, fix: str) -> None:
    error = Running(fail=last_words).join().error
    assert isinstance(error, UserError)
    assert fix in str(error) and last_words in str(error)
    assert read_announcement("big") is None


def test_a_program_that_is_not_there_is_named() -> None:
    error = Running(words="no-such-program serve").join().error
    assert isinstance(error, UserError)
    assert str(error).startswith("no-such-program: ") and "--command" in str(error)


def test_a_key_that_a_server_prints_is_shown_to_nobody() -> None:
    script = "import os; print(os.environ['VLLM_API_KEY'] + ' is bad'); raise SystemExit(1)"
    error = Running(words=f'{sys.executable} -c "{script}"').join().error
    assert str(error).endswith("\n*** is bad")


def test_a_port_that_was_taken_meanwhile_is_no_end(monkeypatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken, free = other.getsockname()[1], serving._free_port
        ports = iter([taken])
        monkeypatch.setattr(serving, "_free_port", lambda at: next(ports, None) or free(at))
        running = Running()
        assert announced().port != taken
        assert running.stop().error is None


def test_it_is_announced_by_a_name_that_resolves(monkeypatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "localhost")
    assert own_host() == "localhost" and own_host("127.0.0.1") == "127.0.0.1"
    monkeypatch.setenv("SLURMD_NODENAME", "no-such-node.invalid")
    assert own_host() == socket.gethostname()
    with pytest.raises(UserError, match="nowhere.invalid: no such host; give --host"):
        own_host("nowhere.invalid")


def test_the_command_line_is_vllms_and_holds_no_key() -> None:
    service = Service("big", "org/judge", REVISION, MODEL, "node7")
    standard = f"org/judge --revision {REVISION} --host 0.0.0.0 --port 80"
    standard += f" --served-model-name {MODEL}"
    assert words_of(service, "0.0.0.0", 80) == ["vllm", "serve", *standard.split()]
    service.command = "python -m x --model {model} --bind {address}:{port} --json '{\"a\": {}}'"
    expected = shlex.split("python -m x --model org/judge --bind 0.0.0.0:80 --json")
    assert words_of(service, "0.0.0.0", 80) == [*expected, '{"a": {}}']


# The command.


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return micro_with_server(tmp_path / "cluster.yaml")


def ops(config_file: Path, action: str, *words: str) -> list[str]:
    start = [sys.executable, "-m", "unlearning_grid.ops", "judge-server", action]
    return [*start, "--config", str(config_file), *words]


def done(config_file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(ops(config_file, *words), capture_output=True, text=True, timeout=60)


@contextmanager
def running(config_file: Path, *words: str) -> Iterator[subprocess.Popen[Any]]:
    with open("job.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(
            ops(config_file, "run", "big", "--host", "127.0.0.1", *words),
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_command_serves_until_it_is_told_to_stop(config_file: Path, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    before = done(config_file, "status", "big")
    assert before.returncode == 1 and "announced    no" in before.stdout
    with running(config_file, "--command", command()) as process:
        found = announced()
        assert found.job == "77" and found.model == MODEL
        status = done(config_file, "status", "big")
        assert status.returncode == 0, status.stderr
        assert f"127.0.0.1:{found.port} (Slurm job 77)" in status.stdout
        assert [v.labels for v in ask(*range(4))] == right(range(4))
        pid = asked()[0][0]
        words = f"org/judge --revision {REVISION} --host 127.0.0.1 --port {found.port}"
        assert " ".join(psutil.Process(pid).cmdline()).endswith(
            f"{words} --served-model-name {MODEL}"
        )
        assert files_with(found.key) == {".judge-servers/big/announcement.json"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert not psutil.pid_exists(pid) and read_announcement("big") is None
    assert "judge server big ended: it was asked to" in Path("job.log").read_text()
    assert not files_with(found.key)


def test_the_command_that_cannot_start_fails(config_file: Path) -> None:
    with running(config_file, "--command", command(fail="CUDA out of memory")) as process:
        assert process.wait(20) == 1
    text = Path("job.log").read_text()
    assert text.count("error: judge server big ended with status 1 before it answered") == 1
    assert "--gpu-memory-utilization" in text and "Traceback" not in text


def test_a_server_that_no_judge_names_is_refused(config_file: Path) -> None:
    refused = done(config_file, "run", "small")
    assert refused.returncode == 1
    assert refused.stderr == (
        "error: cluster.yaml: no judge has base_url: cluster:small; there are ['big']\n"
    )


def test_where_there_is_no_slurm_start_says_what_to_do(config_file: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(config_file.parent))
    refused = done(config_file, "start", "big", "--", "--partition=gpu")
    assert refused.returncode == 1
    assert "where there is no Slurm, judge-server run serves on this machine" in refused.stderr
