"""Kept replies and a reader that has become stricter: what is asked again, how often."""

import itertools
import json

import pytest

from judge_records import found, key
from judge_server import Answer, judge_block, numbered_verdict
from unlearning_grid.judge.base import JudgeContext
from unlearning_grid.judge.labels import SIX
from unlearning_grid.judge.openai import OpenAIJudge
from unlearning_grid.remote.cache import Cache
from unlearning_grid.remote.client import Client
from unlearning_grid.remote.records import Record
from unlearning_grid.remote.requests import InvalidReply, build, request_key

REQUEST = build(judge_block("chat"), "S", {"completion": "c1"})


def strict(text: str) -> str:
    if not text.startswith("good"):
        raise InvalidReply("not good")
    return text


def client(folder) -> Client:
    return Client(judge_block("chat"), cache=folder)


@pytest.mark.parametrize("kept_before", range(1, 4))
def test_the_earliest_that_the_reader_takes_is_served_and_nothing_is_asked_twice(
    server, tmp_path, kept_before
):
    """Every mixture of up to three kept replies, in every order of writing."""
    for case, taken in enumerate(itertools.product([True, False], repeat=kept_before)):
        for written, order in enumerate(itertools.permutations(range(kept_before))):
            folder = tmp_path / f"{case}-{written}"
            texts = [f"{'good' if good else 'bad'} {n}" for n, good in enumerate(taken)]
            for n in order:
                where = (request_key(REQUEST, 0), "audit", "m", "chat", "", 0, texts[n])
                Cache(folder).append(Record(*where, time_ns=10**18 + n))
            server.asked.clear()
            server.respond = lambda asked: Answer(text="good, asked")
            expected = next((text for text in texts if text.startswith("good")), "good, asked")
            for _ in range(4):
                (reply,) = client(folder).ask([REQUEST], strict)
                assert reply.value == expected
            assert len(server.asked) == (not any(taken))
            (old,) = client(folder).ask([REQUEST], str)  # the reader that took them all
            assert (old.value, old.cached) == (texts[0], True)
            assert len(server.asked) == (not any(taken))


def test_an_audit_with_a_stricter_reader_asks_once_for_each(server, ask, api, tmp_path):
    asker = OpenAIJudge(judge_block(api), JudgeContext("Bruce Lee"))
    for n in range(12):
        where = request_key(asker.request("Who?", f"c{n}", SIX), 0)
        text = '{"old": true}' if n % 3 else "prose"
        Cache(tmp_path / "cache").append(Record(where, "audit", "m", "chat", "", 0, text))
    runs = [ask(*range(12)) for _ in range(3)]
    assert len(server.asked) == 12
    assert runs[0] == runs[1] == runs[2]
    assert [v.labels for v in runs[0]] == [numbered_verdict(n, SIX) for n in range(12)]


def test_what_failed_is_counted_by_key_and_not_served(tmp_path):
    cache, reader = Cache(tmp_path), Cache(tmp_path)
    for n, failure in [(1, "invalid"), (1, "unavailable"), (2, None), (3, "refused")]:
        cache.append(Record(key(n), "audit", "m", "chat", "", 0, json.dumps(n), failure=failure))
        reader.refresh()
    numbers = [key(n) for n in range(1, 5)]
    assert list(reader.failures(numbers).values()) == [2, 0, 1, 0]
    assert reader.later(numbers) == {}
    assert found(tmp_path, 1, 2, 3) == {2: "2"}
