"""What a server says when it does not answer, and what follows from it.

Part of the transport, and like it outside the code digests.
"""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Mapping
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.remote.requests import Request


class Transient(Exception):
    """May work the next time; `wait` is what the server asks for, seconds."""

    def __init__(self, detail: str, wait: float | None = None) -> None:
        super().__init__(detail)
        self.wait = wait


class Rejected(Exception):
    """This one request cannot be answered."""

    def __init__(self, failure: str, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure


class Fault:
    """What a server says about a request that it does not answer."""

    def __init__(self, status: int, body: Mapping[str, Any] | None, text: str) -> None:
        found = (body or {}).get("error") or (body or {}).get("detail") or body or {}
        if isinstance(found, list) and found and isinstance(found[0], Mapping):
            found = {"message": found[0].get("msg"), "param": (found[0].get("loc") or [None])[-1]}
        if not isinstance(found, Mapping):
            found = {"message": found}
        inner = found.get("innererror")
        inner = inner if isinstance(inner, Mapping) else {}
        self.status = status
        self.codes = {str(v) for v in (found.get("code"), found.get("type"), inner.get("code"))}
        self.param = str(found.get("param") or "")
        self.message = text if not found.get("message") else " ".join(str(found["message"]).split())
        self.says = f"HTTP {status}: {self.message[:300]}"


_TRANSIENT = {"server_error", "rate_limit_exceeded", "overloaded_error", "429", "500", "502", "503"}
_NO_CREDIT = {"insufficient_quota", "billing_hard_limit_reached"}
_FILTERS = {
    "content_filter",
    "content_policy_violation",
    "invalid_prompt",
    "ResponsibleAIPolicyViolation",
}
_TOO_LONG = {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"}
_LENGTH = re.compile(
    r"context (?:length|window|size)|prompt is too long|too many (?:input )?tokens|longer than the "
    r"(?:maximum )?model",
    re.IGNORECASE,
)
_PARAMETERS = {
    "temperature": "temperature",
    "reasoning": "effort",
    "reasoning_effort": "effort",
    "reasoning.effort": "effort",
    "max_output_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "structured",
    "text": "structured",
    "text.format": "structured",
}


def classify(
    fault: Fault, headers: Mapping[str, str], request: Request, block: Mapping[str, Any]
) -> Exception:
    """The exception to raise for a fault: Transient, Rejected, or UserError with the key to fix."""
    at, variable = f"judges.{block['name']}", block["key_variable"]
    status, says = fault.status, fault.says
    if status == 402 or fault.codes & _NO_CREDIT:
        return UserError(f"{at}.key_variable: the account of {variable} has no credit ({says})")
    if status == 401:
        return UserError(
            f"{at}.key_variable: the server does not take the key in {variable} ({says}); export "
            "a valid one under that name"
        )
    if status == 403:
        return UserError(f"{at}.key_variable: the key in {variable} may not do this ({says})")
    if status in (404, 405) or (status in (400, 422) and fault.param == "model"):
        return UserError(
            f"{at}.model: the server has no {block['model']!r} for the {request.api} API ({says}); "
            f"check model, base_url and api of {at}"
        )
    if fault.codes & _FILTERS and status < 500:
        return Rejected("filtered", says)
    if status == 413 or fault.codes & _TOO_LONG or (status < 500 and _LENGTH.search(fault.message)):
        return Rejected("invalid", f"too long for the model ({says})")
    if status in (408, 409, 425, 429) or status >= 500:
        return Transient(says, retry_after(headers))
    if status < 300:  # a reply that reports an error, or no JSON: a proxy's page, a broken server
        passes = fault.codes == {"None"} or fault.codes & _TRANSIENT
        return Transient(says) if passes else Rejected("unavailable", says)
    key = _parameter(fault, request) if status in (400, 422) else None
    if key == "structured":
        key = key if request.api == "chat" else "api"
        fix = "try another of json_schema, json_object, none" if key != "api" else "try api: chat"
        return UserError(
            f"{at}.{key}: the server does not take a schema in this form ({says}); {fix}"
        )
    if key:
        return UserError(f"{at}.{key}: the model does not take it ({says}); set it to null")
    if any(f"{q}{block['model']}{q}" in fault.message for q in "'\"`"):
        return UserError(f"{at}.model: the server does not take {block['model']!r} ({says})")
    return Rejected("invalid", says)


def _parameter(fault: Fault, request: Request) -> str | None:
    """Key of the configuration behind the parameter that a server complains about."""
    for name in sorted(_PARAMETERS, key=len, reverse=True):
        if fault.param == name or fault.param.startswith(f"{name}."):
            return _PARAMETERS[name]
    if fault.param:
        return None
    asked = request.payload.get("input") or str(request.payload.get("messages", [""])[-1])
    for name in sorted(_PARAMETERS, key=len, reverse=True):
        # A server may quote the text under judgement: a word that stands in it proves nothing.
        sent = name.partition(".")[0] in request.payload and name not in ("text", "reasoning")
        if sent and name not in asked and re.search(rf"\b{re.escape(name)}\b", fault.message):
            return _PARAMETERS[name]
    return None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a reply asks to wait: retry-after-ms, or retry-after in seconds or as a date."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
    except (TypeError, ValueError):
        return None
    return max(0.0, date.timestamp() - time.time())


def read_json(text: str) -> Mapping[str, Any] | None:
    """The JSON object in a body, or None."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, Mapping) else None


def reports_error(body: Mapping[str, Any]) -> bool:
    """Whether a reply with status 200 reports an error in place of an answer."""
    return bool(body.get("error")) and not body.get("choices")
