"""A judge served by a job of its own, on a real Slurm: found by other jobs, moved, stopped."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from judge_servers import (
    announced,
    asked,
    command,
    files_with,
    micro_with_server,
    right,
    times_asked,
    until,
)
from modules import SCRIPTS
from slurm.cluster import Cluster
from support import ROOT
from unlearning_grid.remote.servers import SERVERS, mark_wanted, read_announcement

pytestmark = pytest.mark.slurm

ROWS = 80
CLIENT = f"""
import json
from judge_servers import ask
verdicts = ask(*range({ROWS}))
json.dump([v.labels for v in verdicts], open("verdicts.json", "w"))
"""


@pytest.fixture(autouse=True)
def place(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory with a configuration; no job of it outlives the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{SCRIPTS}{os.pathsep}{ROOT / 'tests'}")
    micro_with_server(tmp_path / "cluster.yaml")
    yield
    run("scancel", f"--user={os.getuid()}", "--name=judge-client")
    judge_server("stop", "big")


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def judge_server(action: str, *words: str) -> str:
    start = [sys.executable, "-m", "unlearning_grid.ops", "judge-server", action]
    return run(*start, "--config", "cluster.yaml", *words)


def start(node: str, **options: float) -> str:
    """Start the stand-in as a job on a node; the job's id."""
    words = ["--host=127.0.0.1", "--idle-minutes=0.2", f"--command={command(**options)}"]
    sbatch = ["--gres=gpu:h100:1", "--mem=2000", "--time=10", f"--nodelist={node}"]
    said = judge_server("start", *words, "big", "--", *sbatch)
    assert said.startswith("big: job ") and "submitted, serves org/judge@0123456789ab" in said
    return said.split()[2]


def state(job: str) -> str:
    return run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()


def test_a_job_finds_it_survives_its_move_and_it_stops_by_itself() -> None:
    Path("client.py").write_text(CLIENT)
    words = ["--job-name=judge-client", "--mem=2000", "--output=client.log"]
    client = run("sbatch", "--parsable", *words, f"--wrap=exec {sys.executable} client.py").strip()
    until(lambda: (SERVERS / "big" / "wanted").exists(), 60)  # it waits: there is no server yet

    first = start("gn1", delay=0.1)
    assert judge_server("start", "big").startswith(f"big: job {first} is ")
    before = announced()
    assert before.job == first
    status = judge_server("status", "big")
    assert f"{first} RUNNING gn1" in status and "answers      yes" in status, status
    until(lambda: len(asked()) >= 20, 60)
    run("scancel", first)
    until(lambda: read_announcement("big") is None, 30)

    second = start("gn2", delay=0.1)
    after = announced()
    assert after.job == second and (after.port, after.key) != (before.port, before.key)
    assert "gn2" in judge_server("status", "big")
    until(lambda: state(client) == "COMPLETED", 60)
    assert json.loads(Path("verdicts.json").read_text()) == right(range(ROWS))
    counts = times_asked()
    assert set(counts) == {f"c{n}" for n in range(ROWS)} and max(counts.values()) <= 2
    assert sum(n == 2 for n in counts.values()) <= 4, "what was open, and nothing else"

    for key in (before.key, after.key):
        assert files_with(key) <= {".judge-servers/big/announcement.json"}
    until(lambda: state(second) == "COMPLETED", 60)
    assert "nobody needed it" in (SERVERS / "big" / f"job-{second}.log").read_text()
    assert read_announcement("big") is None
    assert judge_server("stop", "big") == "big: no job and no server; nothing to stop\n"


def test_before_its_time_limit_it_submits_the_job_that_goes_on() -> None:
    first = start("gn1")
    announced()
    warn = ["scancel", "--batch", "--signal=USR1", first]  # as Slurm does before the limit
    run(*warn)
    status = judge_server("status", "big")
    assert f"jobs         {first} RUNNING gn1\n" in status, "nobody has needed it"
    mark_wanted("big")
    run(*warn)

    def successor() -> str:
        log = (SERVERS / "big" / f"job-{first}.log").read_text()
        return log.partition("the time limit is near: job ")[2].partition(" ")[0]

    second = until(successor)
    assert state(second) == "PENDING" and state(first) == "RUNNING"
    run("scancel", first)  # as Slurm does at the limit: SIGTERM
    until(lambda: (found := read_announcement("big")) and found.job == second, 60)
    assert "cancelled" in judge_server("stop", "big")
    until(lambda: read_announcement("big") is None, 30)
