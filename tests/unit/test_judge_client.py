"""The client over real HTTP: order, limits, pauses, outages, interruptions, what it keeps.

A completion "c5" is answered with the bits of 5, so that a verdict on the wrong row shows.
"""

import email.utils
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from judge_server import FAST, KEY, Answer, judge_block, kept, numbered_verdict
from modules import SCRIPTS
from support import environment
from unlearning_grid.errors import UserError
from unlearning_grid.judge.base import JudgeContext
from unlearning_grid.judge.labels import SIX
from unlearning_grid.judge.openai import OpenAIJudge
from unlearning_grid.remote import client, transport
from unlearning_grid.remote.cache import open_cache
from unlearning_grid.runtime.job import Interrupted


def test_verdicts_meet_their_rows_whatever_comes_first(server, ask):
    chance = random.Random(0)
    server.respond = lambda asked: Answer(delay=chance.uniform(0, 0.05))
    numbers = [chance.randrange(64) for _ in range(200)]
    verdicts = ask(*numbers)
    assert [v.labels for v in verdicts] == [numbered_verdict(n, SIX) for n in numbers]
    assert len(server.asked) == len(set(numbers))  # equal requests are asked once
    assert 2 <= server.most_open <= 16


@pytest.mark.parametrize("form", ["seconds", "milliseconds", "date"])
def test_one_pause_holds_for_all_threads(server, ask, form):
    wait = 0.6 if form == "date" else 0.4
    date = email.utils.formatdate(time.time() + 2, usegmt=True)  # whole seconds: 1 to 2 from now
    headers = {
        "seconds": {"retry-after": "0.4"},
        "milliseconds": {"retry-after-ms": "400"},
        "date": {"retry-after": date},
    }[form]
    server.script = [Answer(status=429, headers=headers, delay=0.05)]
    server.respond = lambda asked: Answer(delay=0.1)
    assert all(verdict.labels for verdict in ask(*range(12), at_once=4))
    early = sum(1 for a in server.asked if a.time < server.asked[0].time + wait)
    assert early <= 4  # those that were open already
    assert len(server.asked) == 13


def test_a_pause_beyond_all_patience_is_not_waited_for(server, ask):
    server.respond = lambda asked: Answer(status=429, headers={"retry-after": "3600"})
    began = time.monotonic()
    assert {verdict.failure for verdict in ask(*range(8), at_once=2)} == {"unavailable"}
    assert time.monotonic() - began < 2
    assert len(server.asked) <= 2


def test_an_interrupted_batch_leaves_at_once_and_keeps_what_came(
    server, ask, tmp_path, monkeypatch
):
    monkeypatch.setattr(transport, "PATIENCE", replace(FAST, read_timeout=30.0))
    server.respond = lambda asked: Answer(delay=0 if asked.data["completion"] < "c4" else 30)

    def stop(*_: object) -> None:
        raise Interrupted

    def watch() -> None:
        while len(kept(tmp_path)) < 4:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, stop)
    try:
        threading.Thread(target=watch, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(Interrupted):
            ask(*range(8))
        assert time.monotonic() - began < 10
    finally:
        signal.signal(signal.SIGALRM, before)
    assert sorted(str(record.text) for record in kept(tmp_path)) == sorted(
        json.dumps(numbered_verdict(number, SIX)) for number in range(4)
    )


def test_what_is_kept_says_how_it_was_made_and_holds_no_secret(server, ask, tmp_path, api):
    server.script = [Answer(status=500)]
    (verdict,) = ask(5, temperature=0.5, effort="low")
    (record,) = kept(tmp_path)
    assert record.key == verdict.request
    assert (record.judge, record.model, record.api) == ("audit", "m", api)
    assert record.decoding == {"temperature": 0.5, "effort": "low"}
    assert record.usage == {"input": 100, "output": 20, "reasoning": 5, "cached": 50}
    assert (record.finish_reason, record.attempts, record.replicate) == ("stop", 2, 0)
    assert 0 < record.latency < 1
    stored = b"".join(path.read_bytes() for path in (tmp_path / "cache").iterdir())
    for secret in (KEY, "Judge it.", "Bruce Lee", "Who?", '"c5', server.url):
        assert secret.encode() not in stored


def test_a_missing_key_or_address_is_named_before_anything_is_sent(server, ask, monkeypatch):
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(UserError, match="judges.audit.key_variable: JUDGE_KEY is not set"):
        ask(1)
    monkeypatch.setenv("JUDGE_KEY", "x")
    with pytest.raises(UserError, match=r"judges.audit.base_url: '\$NO_URL' gives no http"):
        ask(1, base_url="$NO_URL")
    assert server.asked == []


def test_what_is_all_in_the_cache_needs_neither_key_nor_sdk(server, ask, tmp_path, api):
    wanted = ask(*range(8))
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from judge_server import judge_block\n"
        "from unlearning_grid.judge.base import JudgeContext\n"
        "from unlearning_grid.judge.labels import SIX\n"
        "from unlearning_grid.judge.openai import OpenAIJudge\n"
        "context = JudgeContext('Bruce Lee', cache=Path(sys.argv[1]))\n"
        "judge = OpenAIJudge(judge_block(sys.argv[2]), context)\n"
        "verdicts = judge.audit([('Who?', f'c{n}') for n in range(8)], SIX, [None] * 8)\n"
        "assert not {'openai', 'tenacity'} & set(sys.modules)\n"
        "print(json.dumps([verdict.labels for verdict in verdicts]))"
    )
    env = {k: v for k, v in environment().items() if not k.startswith("JUDGE_")}
    env["PYTHONPATH"] = f"{SCRIPTS}:{Path(__file__).parents[1]}"
    words = [sys.executable, "-c", code, str(tmp_path / "cache"), api]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [verdict.labels for verdict in wanted]
    assert len(server.asked) == 8


def test_a_word_for_a_server_without_keys_is_no_secret(server, ask, monkeypatch, caplog):
    monkeypatch.setenv("JUDGE_KEY", "none")
    server.respond = lambda asked: Answer(status=400, error={"message": "none of this"})
    ask(1)
    assert "HTTP 400: none of this" in caplog.text


def test_without_a_cache_each_batch_asks(server, api):
    judge = OpenAIJudge(judge_block(api), JudgeContext("X"))
    for _ in range(2):
        assert judge.audit([("Who?", "c3")] * 3, SIX, [None] * 3)[2].labels
    assert len(server.asked) == 2
    counts = judge.client.counts
    assert (counts["asked"], counts["sent"], counts["input_tokens"]) == (2, 2, 200)


def test_nothing_to_ask_is_no_work(server, ask):
    assert ask() == []


def test_a_long_batch_says_how_far_it_is(server, ask, monkeypatch, caplog):
    monkeypatch.setattr(client, "REPORT_EVERY", 0.05)
    server.respond = lambda asked: Answer(delay=0.02 * int(asked.data["completion"][1:]))
    with caplog.at_level("INFO"):
        ask(*range(8))
    assert re.search(r"judge audit: [1-7] of 8 replies, 0 failed, \d+\.\d/s", caplog.text)


def test_a_disk_that_takes_nothing_costs_no_verdict(server, ask, tmp_path, caplog):
    (tmp_path / "cache").mkdir(mode=0o500)
    with open_cache(tmp_path / "cache")._writing:
        full = os.open("/dev/full", os.O_WRONLY)
        open_cache(tmp_path / "cache")._handle = full
    assert [v.labels for v in ask(*range(20))] == [numbered_verdict(n, SIX) for n in range(20)]
    assert caplog.text.count("cannot be kept") == 1
