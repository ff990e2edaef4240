"""A judge server that fails as told, and a judge that asks it. Fixtures: server, api, ask."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from judge_server import FAST, KEY, JudgeServer, judge_block, numbered_verdict
from unlearning_grid.judge.base import JudgeContext, Verdict
from unlearning_grid.judge.labels import SIX
from unlearning_grid.judge.openai import OpenAIJudge
from unlearning_grid.remote import transport


@pytest.fixture(scope="module")
def running() -> Iterator[JudgeServer]:
    server = JudgeServer()
    yield server
    server.close()


@pytest.fixture
def server(running: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgeServer]:
    running.reset()
    running.say = lambda asked: json.dumps(numbered_verdict(int(asked.data["completion"][1:]), SIX))
    monkeypatch.setenv("JUDGE_KEY", KEY)
    monkeypatch.setenv("JUDGE_URL", running.url)
    monkeypatch.setattr(transport, "PATIENCE", FAST)
    yield running
    running.reset()


@pytest.fixture(params=["responses", "chat"])
def api(request: pytest.FixtureRequest) -> str:
    return request.param


Ask = Callable[..., list[Verdict]]


@pytest.fixture
def ask(server: JudgeServer, api: str, tmp_path: Path) -> Ask:
    """Verdicts on the completions with these numbers."""

    def asking(*numbers: int, at_once: int = 16, **changes: Any) -> list[Verdict]:
        context = JudgeContext("Bruce Lee", requests_at_once=at_once, cache=tmp_path / "cache")
        judge = OpenAIJudge(judge_block(api, **changes), context)
        return judge.audit([("Who?", f"c{n}") for n in numbers], SIX, [None] * len(numbers))

    return asking
