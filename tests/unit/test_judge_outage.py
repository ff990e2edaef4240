"""Texts that no server answers, servers that are down, and how the two are told apart."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from judge_server import FAST, Answer, Asked, numbered_verdict
from unlearning_grid.judge.labels import SIX
from unlearning_grid.remote import outage, transport
from unlearning_grid.remote.outage import Pending
from unlearning_grid.remote.requests import Request
from unlearning_grid.remote.transport import PATIENCE


def failing(numbers: set[int]) -> Callable[[Asked], Answer]:
    """A server that fails on these completions each time."""
    return lambda asked: Answer(status=500 if number(asked) in numbers else 200)


def number(asked: Asked) -> int:
    return int(asked.data["completion"][1:])


@pytest.mark.parametrize("at_once", [1, 4, 16])
def test_an_outage_ends_a_batch_early_however_large_it_is(server, ask, at_once):
    server.respond = lambda asked: Answer(status=500)
    verdicts = ask(*range(400), at_once=at_once)
    assert {verdict.failure for verdict in verdicts} == {"unavailable"}
    assert len(server.asked) <= FAST.attempts * (at_once + FAST.outage + at_once - 1)


def test_an_outage_costs_the_patience_of_one_request_and_some_probes(server, ask, monkeypatch):
    monkeypatch.setattr(transport, "PATIENCE", replace(FAST, attempts=6, probe=2, outage=4))
    server.respond = lambda asked: Answer(status=500)
    ask(*range(64), at_once=1)
    assert Counter(Counter(number(a) for a in server.asked).values()) == {6: 1, 2: 4}
    shorter = PATIENCE.for_probe()
    assert (shorter.attempts, shorter.total) == (3, 90.0)


@pytest.mark.parametrize("first", [0, 20, 37])
@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_poisoned_requests_are_no_outage_wherever_they_stand(server, ask, first, at_once):
    bad = {first, first + 1, first + 2}
    server.respond = failing(bad)
    verdicts = ask(*range(40), at_once=at_once)
    wanted = [None if n in bad else numbered_verdict(n, SIX) for n in range(40)]
    assert [v.labels for v in verdicts] == wanted
    assert {verdicts[n].failure for n in bad} == {"unavailable"}


def test_probes_are_taken_from_elsewhere(server, ask, monkeypatch):
    monkeypatch.setattr(outage, "random", random.Random(0))  # four in a row is unlikely, no more
    server.respond = failing(set(range(10)))
    assert all(verdict.labels for verdict in ask(*range(40), at_once=1)[10:])


def test_as_many_poisoned_requests_as_slots_are_no_outage(server, ask):
    server.respond = failing(set(range(16)))
    assert all(verdict.labels for verdict in ask(*range(48), at_once=16)[16:])


def test_a_server_that_comes_back_is_asked_for_what_was_put_aside(server, ask):
    server.script = [Answer(status=500)] * (FAST.attempts + 2 * FAST.probe)
    verdicts = ask(*range(8), at_once=1)
    assert [v.failure for v in verdicts] == ["unavailable", *[None] * 7]


@pytest.mark.parametrize("bad", [range(3), range(30)], ids=["few", "most"])
def test_runs_that_fail_do_not_start_with_the_same_requests(server, ask, bad):
    """However many are poisoned, at the head, all others come within as few runs as can be."""
    server.respond = failing(set(bad))
    for run in range(8):  # each tries at least five new ones
        before = len(server.asked)
        tried = Counter(number(a) for a in server.asked)
        verdicts = ask(*range(40), at_once=1)
        now = list(dict.fromkeys(number(a) for a in server.asked[before:]))
        again = [tried[n] > 0 for n in now]
        assert again == sorted(again), (run, now)  # new ones first
        if not any(verdict.failure for verdict in verdicts[len(bad) :]):
            break
    assert not any(verdict.failure for verdict in verdicts[len(bad) :])


def test_runs_in_a_long_outage_try_all_requests_in_turn(server, ask):
    server.respond = lambda asked: Answer(status=500)
    runs: Counter[int] = Counter()
    for _ in range(8):
        before = len(server.asked)
        ask(*range(20), at_once=1)
        runs.update({number(asked) for asked in server.asked[before:]})
    assert runs == dict.fromkeys(range(20), 2)  # five in each run


def test_every_request_ends_once_whatever_fails():
    """The order alone, for many mixtures; the least failed are taken before the others."""
    request = Request("chat", None, {})
    for seed in range(300):
        chance = random.Random(seed)
        keys = [f"{n:02d}" for n in range(chance.randrange(1, 40))]
        share = chance.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        bad = {key for key in keys if chance.random() < share}
        failures = {key: chance.randrange(3) for key in keys}
        pending = Pending(dict.fromkeys(keys, request), failures, limit=4)
        ended: list[str] = []
        tries = 0
        while taken := pending.take():
            key, _, probe = taken
            tries += not pending.down
            if pending.down or key in bad:
                if pending.down or not pending.failed(key, request, probe):
                    ended.append(key)
            else:
                pending.replied()
                ended.append(key)
        assert sorted(ended) == keys
        assert tries <= 5 * (len(keys) - len(bad) + 1), seed
