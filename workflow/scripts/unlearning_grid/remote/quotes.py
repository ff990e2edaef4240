"""Text of a request that a server quotes back when it complains.

It is untrusted and it is kept nowhere, so it neither decides what a complaint means nor stands in
what is written about it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from unlearning_grid.remote.requests import Request

MARK = "[...]"
_LONG = 16  # characters in a row that are no coincidence
_LONGEST = 4000  # characters of a complaint that are looked at


def judged(request: Request) -> list[str]:
    """The texts in the user turn, as they were before they became JSON."""
    *_, user = _turns(request)
    try:
        return list(_strings(json.loads(user)))
    except ValueError:
        return [user]


def cut(message: str, request: Request) -> str:
    """A server's words without what they quote of the request, however it is escaped.

    Runs of 16 characters and more are cut wherever they stand, shorter texts where they stand
    whole in quotes.
    """
    message = message[:_LONGEST]
    texts = [*_turns(request), *judged(request)]
    for text in sorted(texts, key=len, reverse=True):
        if text and len(text) < _LONG:
            message = re.sub(rf"(['\"`]){re.escape(text)}\1", MARK, message)
    sent = "\0".join(set().union(*map(_forms, texts)))
    quoted = bytearray(len(message))
    for start in range(len(message) - _LONG + 1):
        if message[start : start + _LONG] in sent:
            quoted[start : start + _LONG] = b"\1" * _LONG
    parts, done = [], 0
    for run in re.finditer(rb"\x01+", quoted):
        parts += [message[done : run.start()], MARK]
        done = run.end()
    return "".join([*parts, message[done:]])


def _turns(request: Request) -> tuple[str, ...]:
    """System and user turn."""
    if request.api == "responses":
        return request.payload["instructions"], request.payload["input"]
    return tuple(turn["content"] for turn in request.payload["messages"])


def _strings(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for value in data.values():
            yield from _strings(value)
    elif isinstance(data, list):
        for value in data:
            yield from _strings(value)


def _forms(text: str) -> set[str]:
    """A text as it is, on one line, and escaped in the ways of JSON and Python."""
    escaped = json.dumps(text, ensure_ascii=False), json.dumps(text), repr(text)
    return {text, " ".join(text.split()), *(form[1:-1] for form in escaped)}
