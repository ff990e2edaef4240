"""What is sent to each API, what a key covers, and how replies are read."""

import json

import pytest

from judge_server import Answer, judge_block
from unlearning_grid.data.broad import ApiTeacher, Draft
from unlearning_grid.errors import UserError
from unlearning_grid.judge.base import JudgeContext
from unlearning_grid.judge.labels import RUBRIC, SIX
from unlearning_grid.judge.openai import OpenAIJudge, make, parse, schema
from unlearning_grid.remote.requests import (
    InvalidReply,
    Reading,
    build,
    read,
    request_key,
)

STATED = {"effort": "low", "temperature": 0.0, "max_output_tokens": 99}
SCHEMA = schema(("a",))
NAMED = {"name": "reply", "strict": True, "schema": SCHEMA}
TURNS = [{"role": "system", "content": "S"}, {"role": "user", "content": '{"q": 1}'}]


@pytest.mark.parametrize(
    ("block", "with_schema", "payload"),
    [
        (
            judge_block("responses"),
            True,
            {"instructions": "S", "input": '{"q": 1}', "store": False,
             "text": {"format": {"type": "json_schema", **NAMED}}},
        ),
        (
            judge_block("responses", **STATED),
            False,
            {"instructions": "S", "input": '{"q": 1}', "store": False,
             "reasoning": {"effort": "low"}, "temperature": 0.0, "max_output_tokens": 99},
        ),
        (
            judge_block("chat", **STATED),
            True,
            {"messages": TURNS, "reasoning_effort": "low", "temperature": 0.0,
             "max_completion_tokens": 99,
             "response_format": {"type": "json_schema", "json_schema": NAMED}},
        ),
        (
            judge_block("chat", structured="json_object", max_output_tokens=99),
            True,
            {"messages": TURNS, "max_tokens": 99,
             "response_format": {"type": "json_object", "schema": SCHEMA}},
        ),
        (judge_block("chat", structured="none"), True, {"messages": TURNS}),
        (judge_block("chat"), False, {"messages": TURNS}),
    ],
)  # fmt: skip
def test_only_what_the_entry_states_is_sent(block, with_schema, payload):
    request = build(block, "S", {"q": 1}, SCHEMA if with_schema else None)
    assert request.payload == {"model": "m", "stream": False, **payload}


def test_a_key_covers_what_decides_the_answer_and_no_secret(monkeypatch):
    def key(replicate: int = 0, system: str = "S", api: str = "chat", **changes) -> str:
        return request_key(build(judge_block(api, **changes), system, {"q": 1}, SCHEMA), replicate)

    others = [
        key(1), key(system="T"), key(api="responses"), key(model="n"), key(base_url=None),
        key(temperature=0.0), key(effort="low"), key(max_output_tokens=9), key(structured="none"),
    ]  # fmt: skip
    assert len({key(), *others}) == 10
    same = [key(name="other"), key(key_variable="OTHER_KEY"), key(prompt_name="other/name")]
    monkeypatch.setenv("JUDGE_URL", "http://elsewhere/v1")
    monkeypatch.setenv("JUDGE_KEY", "other")
    assert {key(), *same} == {key()}


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"output": None, "status": "completed"}])
@pytest.mark.parametrize("api", ["responses", "chat"])
def test_what_is_no_reply_is_invalid(api, body):
    reading = read(body, judge_block(api))
    assert reading.failure == "invalid"
    assert reading.detail and f"not a reply of the {api} API" in reading.detail


def test_the_last_message_of_a_response_is_its_answer():
    def message(text: str) -> dict:
        return {"type": "message", "content": [{"type": "output_text", "text": text}]}

    body = {"status": "completed", "output": [message("Let me see."), message("{}")]}
    usage = {"input": None, "output": None, "reasoning": None, "cached": None}
    assert read(body, judge_block()) == Reading("{}", finish_reason="stop", usage=usage)


def test_a_message_of_a_completion_may_come_in_parts():
    content = [{"type": "text", "text": "{"}, {"type": "text", "text": "}"}]
    body = {"choices": [{"finish_reason": "stop", "message": {"content": content}}]}
    assert read(body, judge_block("chat")).text == "{}"


def test_parse_wants_exactly_the_fields():
    verdict = dict.fromkeys(SIX, False) | {"refusal": True}
    assert parse(json.dumps(verdict), SIX) == verdict
    assert list(parse(json.dumps(dict(reversed(verdict.items()))), SIX)) == list(SIX)
    with pytest.raises(InvalidReply, match="fields missing: .*not asked for"):
        parse(json.dumps(verdict), RUBRIC)


def test_a_judge_without_a_prompt_is_refused():
    with pytest.raises(UserError, match=r"judges\.audit\.prompt_file: missing"):
        make(judge_block(prompt=None), JudgeContext("X"))


def test_the_rubric_asks_for_its_own_fields(server, api):
    server.say = lambda asked: json.dumps(dict.fromkeys(RUBRIC, True))
    (verdict,) = make(judge_block(api), JudgeContext("X")).rubric([("Who?", "text")])
    assert verdict.labels == dict.fromkeys(RUBRIC, True)
    form = server.asked[0].body["text"]["format"] if api == "responses" else None
    form = form or server.asked[0].body["response_format"]["json_schema"]
    assert form["schema"] == schema(RUBRIC) and form["strict"] is True


def test_a_replicate_really_asks_again(server, api, tmp_path):
    server.say = lambda asked: json.dumps(dict.fromkeys(SIX, asked.before % 2 == 1))

    def ask(replicate: int) -> bool | None:
        context = JudgeContext("X", replicate=replicate, cache=tmp_path)
        (verdict,) = OpenAIJudge(judge_block(api), context).audit([("Who?", "c1")], SIX, [None])
        assert verdict.labels
        return verdict.labels["refusal"]

    assert [ask(0), ask(1), ask(2), ask(1), ask(0)] == [False, True, False, True, False]
    assert len(server.asked) == 3


def test_the_teacher_redraws_and_remembers(server, api, tmp_path):
    def teacher() -> ApiTeacher:
        settings = {
            "judge": judge_block(api, name="teacher", prompt=None),
            "prompt": "Abstract.",
            "max_draws": 2,
        }
        return ApiTeacher(settings, "Bruce Lee", 4, tmp_path)

    server.say = lambda asked: f" On {asked.data['prompt']} {asked.before} "
    assert teacher().draw(["Who?", "When?"], 0) == [Draft("On Who? 0"), Draft("On When? 0")]
    assert teacher().draw(["When?"], 1) == [Draft("On When? 1")]
    assert teacher().draw(["Who?", "When?"], 0) == [Draft("On Who? 0"), Draft("On When? 0")]
    assert len(server.asked) == 3
    assert server.asked[0].system == "Abstract."
    assert server.asked[0].data["target_entity"] == "Bruce Lee"
    assert "text" not in server.asked[0].body and "response_format" not in server.asked[0].body
    server.respond = lambda asked: Answer(text=" ")
    assert teacher().draw(["Why?", "Who?"], 0) == [Draft(None, "invalid"), Draft("On Who? 0")]
