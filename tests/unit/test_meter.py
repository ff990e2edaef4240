"""What judges cost: counted where requests are sent, kept in the ledger, whatever ends the job."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from judge_server import Answer, judge_block
from meter_stages import ask_in_processes
from unlearning_grid.errors import UserError
from unlearning_grid.judge.base import JudgeContext
from unlearning_grid.judge.labels import SIX
from unlearning_grid.judge.openai import OpenAIJudge
from unlearning_grid.runtime import launch, meter
from unlearning_grid.runtime.attempts import attempts_of
from unlearning_grid.runtime.job import Job
from unlearning_grid.runtime.meter import METER, Meter
from unlearning_grid.runtime.stage import Request, run_stage
from unlearning_grid.spec.canonical import canonical


@pytest.fixture(autouse=True)
def own_handler(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run(folder: Path, stage, **settings) -> None:
    spec = {"stage": "audit", "cell": {}, "settings": settings, "code": "c", "env": "e"}
    outputs = {"labels": folder / "labels.txt"}
    run_stage(Request(lambda: stage, canonical(spec), {}, outputs, folder, **PROCESSES))


PROCESSES: dict[str, Any] = {"many": True}
ASKED = (1, 2, 3, 3)


def audit(job: Job) -> None:
    """Four completions, two of them equal, labelled by a judge that is asked over HTTP."""
    context = JudgeContext("Bruce Lee", cache=job.work.parents[2] / "cache")
    judge = OpenAIJudge(judge_block(name=job.settings["judge"]), context)
    judge.audit([("Who?", f"c{n}") for n in ASKED], SIX, [None] * len(ASKED))
    if job.settings.get("fail"):
        raise ValueError("after the judge")
    job.outputs["labels"].write_text("made")


# 3 distinct requests; the server names 100 tokens in, 20 out, 5 of them reasoning, 50 cached.
THREE = {
    "asked": 3,
    "sent": 3,
    "input_tokens": 300,
    "output_tokens": 60,
    "reasoning_tokens": 15,
    "cached_tokens": 150,
}


def test_requests_and_tokens_of_a_failed_attempt_and_of_the_next(server, tmp_path):
    with pytest.raises(ValueError):
        run(tmp_path / "r", audit, judge="audit", fail=True)
    run(tmp_path / "r", audit, judge="audit")
    failed, finished = attempts_of(tmp_path / "r")
    assert (failed.outcome, failed.judges) == ("failed", {"audit": THREE})
    assert finished.judges == {"audit": {"asked": 3, "cached": 3}}
    assert len(server.asked) == 3


def test_what_fails_and_what_is_asked_twice_is_counted(server, tmp_path):
    """A refusal is asked again, and costs twice; a reply without usage is counted apart."""
    server.respond = lambda asked: (
        Answer(refusal="I won't.") if asked.data["completion"] == "c1" else Answer()
    )
    run(tmp_path / "r", audit, judge="other")
    (attempt,) = attempts_of(tmp_path / "r")
    assert attempt.judges == {
        "other": {
            "asked": 3,
            "sent": 4,
            "failed": 1,
            "input_tokens": 400,
            "output_tokens": 80,
            "reasoning_tokens": 20,
            "cached_tokens": 200,
        }
    }


def test_replies_without_usage_are_counted_as_unmetered(server, tmp_path):
    text = json.dumps(dict.fromkeys(SIX, True))
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "content": [part]}
    body = {"id": "1", "object": "response", "status": "completed", "output": [message]}
    server.respond = lambda asked: Answer(raw=json.dumps(body).encode())
    run(tmp_path / "r", audit, judge="local")
    (attempt,) = attempts_of(tmp_path / "r")
    assert attempt.judges == {"local": {"asked": 3, "sent": 3, "unmetered": 3}}


@pytest.mark.parametrize("end", ["well", "failed", "killed"])
def test_processes_of_a_job_add_up(tmp_path, monkeypatch, end):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(launch, "GRACE", 0.2)
    monkeypatch.setitem(PROCESSES, "processes", 2)
    if end == "well":
        run(tmp_path / "r", ask_in_processes, end=end)
    else:
        with pytest.raises((RuntimeError, UserError), match="no judge|SIGKILL"):
            run(tmp_path / "r", ask_in_processes, end=end)
    (attempt,) = attempts_of(tmp_path / "r")
    assert attempt.judges["audit"] == {"sent": 7}
    first = 1 if end == "well" else 0  # the first one is ended with the others, or at once
    sent = attempt.judges["reward"]["sent"]
    assert sent in ((10 + first,) if end == "well" else (10, 11))
    assert not list((tmp_path / "r").glob("work/*/meter-*"))


def test_sums_are_written_now_and_then_and_at_the_end(tmp_path, monkeypatch):
    counting, path = Meter(), meter.path_of(tmp_path, "n")
    counting.start(path)
    counting.add("audit", {"sent": 1})
    assert not path.exists()
    monkeypatch.setattr(meter, "PAUSE", 0.0)
    counting.add("audit", {"sent": 1, "failed": 0})
    assert meter.read(tmp_path, "n") == {"audit": {"sent": 2}}
    monkeypatch.setattr(meter, "PAUSE", 60.0)
    counting.add("reward", {"sent": 5})
    assert meter.read(tmp_path, "n") == {"audit": {"sent": 2}}
    assert counting.stop() == {"audit": {"sent": 2}, "reward": {"sent": 5}}
    assert meter.read(tmp_path, "n") == {"audit": {"sent": 2}, "reward": {"sent": 5}}
    counting.start(path)
    assert counting.stop() == {}


def test_a_disk_that_takes_no_sums_stops_no_work(tmp_path):
    (tmp_path / "file").touch()
    METER.start(tmp_path / "file" / "meter.json")
    METER.add("audit", {"sent": 1})
    assert METER.stop() == {"audit": {"sent": 1}}


def test_attempts_of_other_nonces_are_left_alone(tmp_path):
    for nonce, process, sent in (("a", "main", 1), ("a", 0, 2), ("b", "main", 4)):
        counting = Meter()
        counting.start(meter.path_of(tmp_path, nonce, process))
        counting.add("j", {"sent": sent})
        counting.stop()
    assert meter.read(tmp_path, "a") == {"j": {"sent": 3}}
    assert meter.read(tmp_path, "a", "[0-9]*") == {"j": {"sent": 2}}
    meter.clear(tmp_path, "a")
    assert meter.read(tmp_path, "a") == {} and meter.read(tmp_path, "b") == {"j": {"sent": 4}}
