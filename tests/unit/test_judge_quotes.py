"""Servers that quote what they were asked: it decides nothing, and it is kept nowhere."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server import KEY, Answer, Asked, judge_block
from unlearning_grid.errors import UserError
from unlearning_grid.judge.base import JudgeContext, Verdict
from unlearning_grid.judge.labels import SIX
from unlearning_grid.judge.openai import OpenAIJudge
from unlearning_grid.remote.faults import _FILTERS, _NO_MODEL, _PARAMETERS, _TOO_LONG
from unlearning_grid.remote.quotes import MARK, cut, judged
from unlearning_grid.remote.requests import build

SECRET = 'The "completion",\nwith <|im_end|> café 李 and all that stands in it.'
QUOTES: dict[str, Callable[[Asked], str]] = {
    "as it is": lambda asked: asked.data["completion"],
    "in quotes": lambda asked: f"'{asked.data['completion']}'",
    "on one line": lambda asked: " ".join(asked.data["completion"].split()),
    "the JSON that was sent": lambda asked: asked.user,
    "JSON": lambda asked: json.dumps(asked.data),
    "JSON with other letters": lambda asked: json.dumps(asked.data, ensure_ascii=False),
    "Python": lambda asked: repr(asked.data),
    "the head": lambda asked: repr(asked.data["completion"])[:40] + "...",
    "the tail": lambda asked: "..." + asked.data["completion"][-40:],
    "the system turn": lambda asked: asked.system,
}
each_quote = pytest.mark.parametrize("quote", QUOTES)


def pieces(text: str, size: int = 16) -> set[str]:
    return {text[at : at + size] for at in range(len(text) - size + 1)}


@pytest.fixture
def audit(server, api, tmp_path: Path) -> Callable[..., list[Verdict]]:
    """Verdicts on completions as they stand."""

    def ask(*completions: str, **changes) -> list[Verdict]:
        block = judge_block(api, prompt="Judge it by the rules of the house.", **changes)
        judge = OpenAIJudge(block, JudgeContext("Bruce Lee", cache=tmp_path / "cache"))
        return judge.audit([("Who?", c) for c in completions], SIX, [None] * len(completions))

    return ask


@each_quote
@pytest.mark.parametrize("status", [400, 413, 422, 403, 500, 200])
def test_what_is_kept_and_told_quotes_nothing(audit, server, tmp_path, caplog, quote, status):
    def respond(asked: Asked) -> Answer:
        words = f"Input was flagged: {QUOTES[quote](asked)} by {KEY}"
        return Answer(status=status, error={"message": words, "code": 400})

    server.respond = respond
    with caplog.at_level("INFO"):
        assert audit(SECRET)[0].failure
    stored = b"".join(path.read_bytes() for path in (tmp_path / "cache").iterdir()).decode()
    assert "flagged: " in stored and "flagged: " in caplog.text
    for told in (stored, caplog.text):
        assert MARK in told and KEY not in told
        for text in (SECRET.replace("\n", " "), "Judge it by the rules of the house."):
            assert not pieces(text) & pieces(told)


@each_quote
def test_an_error_that_stops_the_stage_quotes_nothing(audit, server, quote):
    server.respond = lambda asked: Answer(
        status=401, error={"message": f"Bad key {KEY} for {QUOTES[quote](asked)}"}
    )
    with pytest.raises(UserError, match="Bad key") as caught:
        audit(SECRET)
    assert not pieces(SECRET.replace("\n", " ")) & pieces(str(caught.value))
    assert KEY not in str(caught.value)


WORDS = [
    *("m", "'m'", "model 'm' not found", "the model `m` does not exist", '"m"'),
    *sorted(_PARAMETERS),
    *sorted(_FILTERS),
    *sorted(_TOO_LONG),
    *sorted(_NO_MODEL),
    "your account has insufficient_quota, invalid_api_key",
]


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("status", [400, 422])
def test_no_text_under_judgement_stops_a_stage(audit, server, words, status):
    """The server quotes it, whole or by the word that it does not like."""
    server.script = [
        Answer(status=status, error={"message": f"invalid input: {words}"}),
        Answer(status=status, error={"message": f"cannot read '{words}' at 7"}),
        Answer(status=status, error={"message": "cannot read 'm' at 7"}),
    ]
    verdicts = audit(*(f"{n}, I am: {words}" for n in range(3)), temperature=0.0, effort="low")
    assert {verdict.failure for verdict in verdicts} <= {"invalid", "filtered"}


def test_a_parameter_that_is_named_is_not_the_model(audit, server):
    error = {"message": "'m' is not allowed here", "param": "input"}
    server.respond = lambda asked: Answer(status=400, error=error)
    assert audit("no")[0].failure == "invalid"


@given(st.text(min_size=16), st.text(max_size=40), st.sampled_from([str, json.dumps, repr]))
def test_long_quotes_are_cut_from_anything(text, before, form):
    request = build(judge_block("chat"), "S", {"prompt": "Q", "completion": text})
    quoted = form(text)
    kept = cut(f"{before} {quoted} after", request)
    assert not pieces(quoted) & pieces(kept.replace(MARK, "\0"))
    assert judged(request) == ["Q", text]


def test_other_words_stay():
    request = build(judge_block("chat"), "Judge.", {"completion": "yes", "other": ["n1", {"a": 1}]})
    assert cut("not 'yes' but yes; \"n1\"", request) == f"not {MARK} but yes; {MARK}"
    message = "This model's maximum context length is 4096 tokens."
    assert cut(message, request) == message
    assert cut("x" * 10_000, request) == "x" * 4000
