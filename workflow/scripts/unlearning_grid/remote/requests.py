"""What a model behind an API is asked, and how its reply is read.

Everything here can change a result and is part of the code digests; sending and keeping replies are
not (transport, cache, client).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from unlearning_grid.spec.canonical import digest

FORMAT = 1
"""Part of every key. Raise it when replies that were read one way must not be read another."""

# What a chat template could take for a control token ("<|im_end|>", "[/INST]") or for a line break,
# written as JSON escapes: a local server renders all turns into one text before it reads tokens.
_MARKUP = re.compile("<|\\[(?=/?[A-Z][A-Z_]+\\])|[\x7f-\x9f\u2028\u2029]")


class InvalidReply(ValueError):
    """A reply that is not what was asked for. The message says why."""


@dataclass(frozen=True)
class Request:
    """One request, complete.

    Attributes:
        api: "responses" or "chat".
        base_url: the server as the configuration writes it; None for OpenAI's own.
        payload: what is sent, exactly.
        prompt: sha256 (hex) of the system text, for records.
    """

    api: str
    base_url: str | None
    payload: Mapping[str, Any]
    prompt: str = ""


@dataclass(frozen=True)
class Reading:
    """What a reply says: a text, or why there is none (judge.base.FAILURES).

    `usage`: tokens by kind (input, output, reasoning, cached), None where the server does not say.
    """

    text: str | None
    failure: str | None = None
    detail: str | None = None
    finish_reason: str | None = None
    usage: Mapping[str, int | None] = field(default_factory=dict)


def build(
    block: Mapping[str, Any],
    system: str,
    data: Mapping[str, Any],
    schema: Mapping[str, Any] | None = None,
) -> Request:
    """The request of a `judges` entry: instructions in the system turn, data as JSON in the user's.

    Args:
        schema: JSON schema of the reply; None asks for free text.
    Decoding parameters are sent where the entry states them, and left out where it says null.
    """
    make = _responses if block["api"] == "responses" else _chat
    # Some servers stream unless they are told not to.
    payload = {"model": block["model"], "stream": False}
    payload |= make(block, system, user_turn(data), schema)
    return Request(block["api"], block["base_url"], payload, _digest(system))


def user_turn(data: Mapping[str, Any]) -> str:
    """JSON of `data` on one line, without anything that a chat template could take for markup."""
    text = json.dumps(data, ensure_ascii=False)
    text = _MARKUP.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair: \udxxx


def request_key(request: Request, replicate: int) -> str:
    """sha256 (hex) over everything that decides the answer, and the number of the try.

    The server stands in it as the configuration writes it, and no key of an account does.
    """
    return digest(
        {
            "format": FORMAT,
            "api": request.api,
            "base_url": request.base_url,
            "payload": request.payload,
            "replicate": replicate,
        }
    )


def decoding(block: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding parameters that an entry states, by the names of the configuration."""
    names = ("effort", "temperature", "max_output_tokens")
    return {name: block[name] for name in names if block[name] is not None}


def read(body: Mapping[str, Any], block: Mapping[str, Any]) -> Reading:
    """Read the reply of either API; the reason why it ended comes before its text."""
    reader = _read_response if block["api"] == "responses" else _read_chat
    try:
        return reader(body, block["name"])
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        return Reading(None, "invalid", f"not a reply of the {block['api']} API: {body!s:.200}")


@lru_cache(maxsize=16)
def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _responses(
    block: Mapping[str, Any], system: str, user: str, schema: Mapping[str, Any] | None
) -> dict[str, Any]:
    stated = decoding(block)
    if "effort" in stated:
        stated["reasoning"] = {"effort": stated.pop("effort")}
    if schema is not None:
        form = {"type": "json_schema", "name": "reply", "strict": True, "schema": schema}
        stated["text"] = {"format": form}
    return {"instructions": system, "input": user, "store": False, **stated}


def _chat(
    block: Mapping[str, Any], system: str, user: str, schema: Mapping[str, Any] | None
) -> dict[str, Any]:
    stated = decoding(block)
    openai_form = block["structured"] == "json_schema"
    if "effort" in stated:
        stated["reasoning_effort"] = stated.pop("effort")
    if "max_output_tokens" in stated:
        # OpenAI's reasoning models take only the new name, small local servers only the old one.
        limit = "max_completion_tokens" if openai_form else "max_tokens"
        stated[limit] = stated.pop("max_output_tokens")
    if schema is not None and openai_form:
        named = {"name": "reply", "strict": True, "schema": schema}
        stated["response_format"] = {"type": "json_schema", "json_schema": named}
    elif schema is not None and block["structured"] == "json_object":
        stated["response_format"] = {"type": "json_object", "schema": schema}
    turns = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"messages": turns, **stated}


def _read_response(body: Mapping[str, Any], name: str) -> Reading:
    usage = _usage(body.get("usage"), "input", "output")
    status = body["status"]
    reason = (body.get("incomplete_details") or {}).get("reason")
    last: list[Mapping[str, Any]] = []
    for item in body["output"]:
        if item["type"] == "message":
            last = item["content"]
    ended = {"max_output_tokens": "length", None: status}.get(reason, reason)
    if status == "completed":
        ended = "stop"
    return _reading(ended, *_parts(last), usage, name)


def _read_chat(body: Mapping[str, Any], name: str) -> Reading:
    usage = _usage(body.get("usage"), "prompt", "completion")
    choice = body["choices"][0]
    message = choice["message"]
    content = message.get("content")
    text, refusal = _parts(content) if isinstance(content, list) else (content or "", "")
    refusal = message.get("refusal") or refusal
    return _reading(choice.get("finish_reason"), text, refusal, usage, name)


def _parts(content: list[Mapping[str, Any]]) -> tuple[str, str]:
    """(text, refusal) of a message in parts."""
    texts = [part["text"] for part in content if part["type"] in ("output_text", "text")]
    refusals = [part["refusal"] for part in content if part["type"] == "refusal"]
    return "".join(texts), "".join(refusals)


def _reading(
    ended: str | None, text: str, refusal: str, usage: dict[str, int | None], name: str
) -> Reading:
    def make(failure: str | None, detail: str | None) -> Reading:
        return Reading(text or None, failure, detail, ended, usage)

    if ended == "content_filter":
        return make("filtered", "the server's content filter held the reply back")
    if ended == "length":
        return make("truncated", f"cut off at a token limit: {_limit(usage, name)}")
    if refusal:
        return make("refused", f"the model declined: {refusal:.300}")
    if ended != "stop":
        return make("invalid", f"the reply ended for another reason: {ended}")
    if not text.strip():
        return make("invalid", f"the reply is empty; {_limit(usage, name)}")
    return make(None, None)


def _limit(usage: Mapping[str, int | None], name: str) -> str:
    output, reasoning = usage["output"], usage["reasoning"]
    fix = f"raise judges.{name}.max_output_tokens, or the server's own limit"
    if output and reasoning and reasoning >= output:
        return f"all {output} output tokens were reasoning; {fix} (or lower judges.{name}.effort)"
    return f"{'?' if output is None else output} output tokens; if these are too few, {fix}"


def _usage(usage: Mapping[str, Any] | None, sent: str, written: str) -> dict[str, int | None]:
    """Tokens by kind; the two APIs differ in names only."""

    def count(*path: str) -> int | None:
        value: Any = usage
        for step in path:
            value = value.get(step) if isinstance(value, Mapping) else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    return {
        "input": count(f"{sent}_tokens"),
        "output": count(f"{written}_tokens"),
        "reasoning": count(f"{written}_tokens_details", "reasoning_tokens"),
        "cached": count(f"{sent}_tokens_details", "cached_tokens"),
    }


Parse = Callable[[str], Any]
"""Makes a value of a reply's text; raises InvalidReply when it is not what was asked for."""
