"""The fault matrix: for each fault, how often the server is asked, what comes back, what is kept.

Over real HTTP with the real SDK, for both APIs. A completion "c5" is answered with the bits of 5,
so that a verdict on the wrong row shows.
"""

import json
from collections import Counter
from dataclasses import replace

import pytest

from judge_server import FAST, KEY, Answer, Asked, kept, numbered_verdict
from unlearning_grid.errors import UserError
from unlearning_grid.judge.labels import SIX
from unlearning_grid.remote import transport

GOOD = json.dumps(numbered_verdict(5, SIX))


HTML = Answer(raw=b"<html>a proxy's page</html>")
FAILED = {"code": "server_error", "message": "sorry"}
WAIT = "Too many tokens, please wait before trying again."
PER_MINUTE = "Rate limit: too many tokens per minute, context window and all"
FLAGGED = "The model requires moderation; your input was flagged for violence"
GATEWAY = {"code": 403, "message": "No.", "metadata": {"reasons": ["x"], "flagged_input": "c5"}}
RUNS_ON_REASONING = Answer(text="", finish="length", usage=(100, 512, 512, 0))

# name: (answers of the server, requests it gets, failure that comes back, what is kept)
PASSING: dict[str, tuple[list[Answer], int, str | None, list[str | None]]] = {
    "nothing wrong": ([], 1, None, [None]),
    "429": ([Answer(status=429)], 2, None, [None]),
    "429 twice": ([Answer(status=429)] * 2, 3, None, [None]),
    "429 for good": ([Answer(status=429)] * 9, 3, "unavailable", ["unavailable"]),
    "429 about tokens": ([Answer(status=429, error={"message": WAIT})] * 2, 3, None, [None]),
    "429 about tokens, with a code": (
        [Answer(status=429, error={"code": "rate_limit_exceeded", "message": PER_MINUTE})],
        2,
        None,
        [None],
    ),
    "500": ([Answer(status=500)], 2, None, [None]),
    "502": ([Answer(status=502, raw=b"Bad Gateway")], 2, None, [None]),
    "503": ([Answer(status=503)], 2, None, [None]),
    "529": ([Answer(status=529)], 2, None, [None]),
    "500 for good": ([Answer(status=500)] * 9, 3, "unavailable", ["unavailable"]),
    "408": ([Answer(status=408)], 2, None, [None]),
    "409": ([Answer(status=409)], 2, None, [None]),
    "stall": ([Answer(delay=30)], 2, None, [None]),
    "stall for good": ([Answer(delay=30)] * 9, 3, "unavailable", ["unavailable"]),
    "cut before the reply": ([Answer(cut=0)], 2, None, [None]),
    "cut in the reply": ([Answer(cut=40)], 2, None, [None]),
    "200 without JSON": ([HTML], 2, None, [None]),
    "200 without JSON for good": ([HTML] * 9, 3, "unavailable", ["unavailable"]),
    "200 with an error": ([Answer(error=FAILED)], 2, None, [None]),
    "200 with a strange body": ([Answer(raw=b'{"a": 1}')] * 2, 2, "invalid", ["invalid"] * 2),
    "refused once": ([Answer(refusal="No.")], 2, None, ["refused", None]),
    "refused": ([Answer(refusal="No.")] * 2, 2, "refused", ["refused"] * 2),
    "cut off": ([Answer(text=GOOD[:20], finish="length")] * 2, 2, "truncated", ["truncated"] * 2),
    "cut off, yet whole": ([Answer(finish="length")] * 2, 2, "truncated", ["truncated"] * 2),
    "only reasoning": ([RUNS_ON_REASONING] * 2, 2, "truncated", ["truncated"] * 2),
    "filtered reply": ([Answer(finish="content_filter")], 1, "filtered", ["filtered"]),
    "filtered request": (
        [Answer(status=400, error={"code": "content_filter", "message": "no"})],
        1,
        "filtered",
        ["filtered"],
    ),
    "403 of a filter": (
        [Answer(status=403, error={"code": "content_filter", "message": "no"})],
        1,
        "filtered",
        ["filtered"],
    ),
    "403 of a gateway": (
        [Answer(status=403, error={"code": 403, "message": FLAGGED})],
        1,
        "filtered",
        ["filtered"],
    ),
    "403 of a gateway, by field": (
        [Answer(status=403, error=GATEWAY)],
        1,
        "filtered",
        ["filtered"],
    ),
    "400 of a filter, in words": (
        [Answer(status=400, error={"message": "Output blocked by content filtering policy"})],
        1,
        "filtered",
        ["filtered"],
    ),
    "other end": ([Answer(finish="tool_calls")] * 2, 2, "invalid", ["invalid"] * 2),
    "too long": (
        [Answer(status=400, error={"code": "context_length_exceeded", "message": "8192 tokens"})],
        1,
        "invalid",
        ["invalid"],
    ),
    "too long for vLLM": (
        [Answer(status=400, error={"message": "maximum context length is 4096, max_tokens 9"})],
        1,
        "invalid",
        ["invalid"],
    ),
    "too large": ([Answer(status=413)], 1, "invalid", ["invalid"]),
    "400 about this text": (
        [Answer(status=400, error={"message": "bad input", "param": "input"})],
        1,
        "invalid",
        ["invalid"],
    ),
}


@pytest.mark.parametrize("fault", PASSING)
def test_faults_that_cost_at_most_one_verdict(server, ask, tmp_path, fault, monkeypatch):
    if fault.startswith("stall"):
        monkeypatch.setattr(transport, "PATIENCE", replace(FAST, read_timeout=0.4))
    answers, requests, failure, records = PASSING[fault]
    server.script = list(answers)
    (verdict,) = ask(5)
    assert len(server.asked) == requests
    assert verdict.failure == failure
    assert verdict.labels == (None if failure else numbered_verdict(5, SIX))
    assert [record.failure for record in kept(tmp_path)] == records
    assert {record.key for record in kept(tmp_path)} == {verdict.request}
    server.script = []
    (again,) = ask(5)  # a failure is asked again, an answer is not
    assert again.labels == numbered_verdict(5, SIX)
    assert len(server.asked) == requests + (failure is not None)


INVALID = {
    "prose": "I cannot evaluate this.",
    "prose before": f"Here it is: {GOOD}",
    "prose after": f"{GOOD}\nHope this helps!",
    "prose around a fence": f"Sure:\n```json\n{GOOD}\n```",
    "two objects": GOOD + GOOD,
    "two fences": f"```json\n{GOOD}\n```\n```json\n{GOOD}\n```",
    "a list": f"[{GOOD}]",
    "empty": " \n",
    "null": "null",
    "numbers": GOOD.replace("true", "1").replace("false", "0"),
    "out of range": GOOD.replace("true", "7", 1),
    "text": GOOD.replace("true", '"true"', 1),
    "nothing": GOOD.replace("false", "null", 1),
    "not a number": GOOD.replace("true", "NaN", 1),
    "field missing": json.dumps(numbered_verdict(5, SIX[:-1])),
    "field too many": json.dumps(numbered_verdict(5, (*SIX, "safe"))),
    "field twice": GOOD[:-1] + f', "{SIX[0]}": false}}',
    "same value twice": GOOD[:-1] + f', "{SIX[0]}": true}}',
    "nested without end": "[" * 100_000,
    "a number without end": "1" * 5000,
}


def test_what_is_no_verdict_is_asked_once_more_and_is_missing(server, ask, tmp_path):
    texts = list(INVALID.values())
    server.respond = lambda asked: Answer(text=texts[int(asked.data["completion"][1:])])
    verdicts = ask(*range(len(texts)))
    failures = dict(zip(INVALID, (v.failure for v in verdicts), strict=True))
    assert failures == dict.fromkeys(INVALID, "invalid")
    assert all(verdict.labels is None for verdict in verdicts)
    assert len(server.asked) == 2 * len(texts)
    assert Counter(r.text for r in kept(tmp_path)) == Counter(texts * 2)


@pytest.mark.parametrize("text", [f"```json\n{GOOD}\n```", f"\n```\n{GOOD}\n```\n", f" {GOOD}\n"])
def test_a_fenced_verdict_is_a_verdict(server, ask, text):
    server.respond = lambda asked: Answer(text=text)
    assert ask(5)[0].labels == numbered_verdict(5, SIX)
    assert len(server.asked) == 1


def test_a_verdict_cut_at_any_byte_is_invalid(server, ask):
    server.respond = lambda asked: Answer(text=GOOD[: int(asked.data["completion"][1:])])
    verdicts = ask(*range(len(GOOD)))
    assert {verdict.failure for verdict in verdicts} == {"invalid"}
    assert len(server.asked) == 2 * len(GOOD)


def test_a_reply_cut_at_any_byte_is_asked_again(server, ask, api, monkeypatch):
    monkeypatch.setattr(transport, "PATIENCE", replace(FAST, total=120.0))  # 600 at a time
    probe = Asked(api, {}, {"completion": "c63"}, 0.0, "", 0)
    size = len(server.body(probe, Answer()))

    def respond(asked: Asked) -> Answer:
        number = int(asked.data["completion"][1:])
        return Answer(text=GOOD) if asked.before else Answer(text=GOOD, cut=number)

    server.respond = respond
    verdicts = ask(*range(size - 40))
    assert all(verdict.labels == numbered_verdict(5, SIX) for verdict in verdicts)
    assert len(server.asked) == 2 * len(verdicts)


LONG = {"message": "long " * 2000, "code": "insufficient_quota"}
NO_CREDIT = {"code": "insufficient_quota", "message": "quota", "type": "insufficient_quota"}
FASTAPI = b'{"detail": [{"loc": ["body", "temperature"], "msg": "at most 2"}]}'
WRONG: dict[str, tuple[Answer, str]] = {
    "401": (
        Answer(status=401, error={"message": f"Incorrect key: {KEY}"}),
        r"judges.audit.key_variable: the server does not take the key in JUDGE_KEY .*\*\*\*",
    ),
    "403": (Answer(status=403), r"judges.audit.key_variable: the key in JUDGE_KEY may not do this"),
    "403 about the account": (
        Answer(status=403, error={"message": "Your account was flagged."}),
        r"judges.audit.key_variable: the key in JUDGE_KEY may not do this .*account was flagged",
    ),
    "404": (
        Answer(status=404, error={"code": "model_not_found", "message": "no m"}),
        r"judges.audit.model: the server has no 'm' .*no m.*check model, base_url and api",
    ),
    "no credit": (
        Answer(status=429, error=NO_CREDIT),
        "judges.audit.key_variable: the account of JUDGE_KEY has no credit",
    ),
    "no credit, at length": (Answer(status=429, error=LONG), "the account of JUDGE_KEY has no"),
    "400 without the model": (
        Answer(status=400, error={"code": "model_not_found", "message": "x"}),
        "judges.audit.model: the server has no 'm'",
    ),
    "another model": (
        Answer(status=400, error={"message": "Server is pinned to 'n'; requested 'm'."}),
        "judges.audit.model: the server does not take 'm'",
    ),
    "parameter by name": (
        Answer(status=400, error={"param": "temperature", "message": "Unsupported value"}),
        r"judges.audit.temperature: the model does not take it .*Unsupported.*set it to null",
    ),
    "parameter in words": (
        Answer(status=400, error={"message": "'temperature' is not supported", "param": None}),
        "judges.audit.temperature: the model does not take it",
    ),
    "parameter of pydantic": (Answer(status=422, raw=FASTAPI), "judges.audit.temperature: .*at mo"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_what_is_wrong_with_the_configuration_stops_at_once(server, ask, fault, tmp_path):
    answer, message = WRONG[fault]
    ask(1, 2, temperature=0.0)
    server.respond = lambda asked: answer
    with pytest.raises(UserError, match=message) as caught:
        ask(1, 2, 3, temperature=0.0)
    assert len(server.asked) == 3
    assert KEY not in str(caught.value)
    assert len(kept(tmp_path)) == 2  # what came before is kept


def test_other_parameters_are_named_by_their_keys(server, ask, api):
    sent = {
        "responses": {"reasoning.effort": "effort", "text.format.schema": "api"},
        "chat": {"reasoning_effort": "effort", "response_format": "structured"},
    }[api]
    limit = "max_output_tokens" if api == "responses" else "max_completion_tokens"
    for param, key in {**sent, limit: "max_output_tokens"}.items():
        server.script = [Answer(status=400, error={"param": param, "message": "no"})]
        with pytest.raises(UserError, match=rf"judges.audit.{key}: "):
            ask(1, effort="low", max_output_tokens=9)


def test_one_malformed_of_64_costs_one_verdict(server, ask, caplog):
    def respond(asked: Asked) -> Answer:
        return Answer(text="{broken" if asked.data["completion"] == "c17" else None)

    server.respond = respond
    with caplog.at_level("INFO"):
        verdicts = ask(*range(64))
    wanted = [None if n == 17 else numbered_verdict(n, SIX) for n in range(64)]
    assert [verdict.labels for verdict in verdicts] == wanted
    assert Counter(v.failure for v in verdicts) == {None: 63, "invalid": 1}
    assert len(server.asked) == 65
    assert "64 replies wanted, 64 distinct, 0 from the cache; 1 failed (invalid 1)" in caplog.text


def test_only_reasoning_names_the_limit(server, ask, caplog):
    server.respond = lambda asked: RUNS_ON_REASONING
    ask(5)
    assert "all 512 output tokens were reasoning; raise judges.audit.max_output" in caplog.text


def test_the_table_shows_each_failure_and_no_label(server, ask):
    from unlearning_grid.audit.label import label_columns

    faults = {
        "c0": Answer(refusal="No."),
        "c1": Answer(finish="length"),
        "c2": Answer(text="prose"),
        "c3": Answer(finish="content_filter"),
        "c4": Answer(status=500),
    }
    server.respond = lambda asked: faults.get(asked.data["completion"], Answer())
    columns = label_columns(ask(*range(6)))
    failures = ["refused", "truncated", "invalid", "filtered", "unavailable"]
    assert columns["verdict"] == [*failures, "ok"]
    for name in SIX:
        assert columns[name].isna().tolist() == [True] * 5 + [False]
