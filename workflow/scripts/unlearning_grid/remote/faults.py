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
from unlearning_grid.remote.quotes import cut, judged
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
    """What a server says about a request that it does not answer.

    `message` decides what follows; `says` is shown, and quotes nothing of the request.
    """

    def __init__(self, status: int, text: str, request: Request) -> None:
        body = read_json(text) or {}
        found = body.get("error") or body.get("detail") or body
        if isinstance(found, list) and found and isinstance(found[0], Mapping):
            found = {"message": found[0].get("msg"), "param": (found[0].get("loc") or [None])[-1]}
        if not isinstance(found, Mapping):
            found = {"message": found}
        inner, about = _mapping(found.get("innererror")), _mapping(found.get("metadata"))
        self.request = request
        self.status = status
        self.codes = {str(v) for v in (found.get("code"), found.get("type"), inner.get("code"))}
        self.flagged = "flagged_input" in about
        self.param = str(found.get("param") or "")
        whole = " ".join(text.split())[:400]
        self.message = " ".join(str(found["message"]).split()) if found.get("message") else whole
        self.says = f"HTTP {status}: {cut(self.message, request)[:300]}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


_TRANSIENT = {"server_error", "rate_limit_exceeded", "overloaded_error", "429", "500", "502", "503"}
_NO_CREDIT = {"insufficient_quota", "billing_hard_limit_reached"}
_NO_MODEL = {"model_not_found"}
_FILTERS = {
    "content_filter",
    "content_policy_violation",
    "data_inspection_failed",
    "invalid_prompt",
    "moderation_blocked",
    "ResponsibleAIPolicyViolation",
}
_FILTERED = re.compile(  # an account can be flagged too: the text must be meant
    r"\b(?:input|prompt|content|text|message|request)s? (?:was|were|is|are|has been|have been) "
    r"(?:flagged|blocked)|requires moderation|content (?:management policy|polic(?:y|ies)|filter)",
    re.IGNORECASE,
)
_TOO_LONG = {"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"}
_ABOUT_THE_TEXT = (400, 413, 422)
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


def classify(fault: Fault, headers: Mapping[str, str], block: Mapping[str, Any]) -> Exception:
    """The exception to raise for a fault: Transient, Rejected, or UserError with the key to fix."""
    at, variable = f"judges.{block['name']}", block["key_variable"]
    status, says, request = fault.status, fault.says, fault.request
    if status == 402 or fault.codes & _NO_CREDIT:
        return UserError(f"{at}.key_variable: the account of {variable} has no credit ({says})")
    if status in (408, 409, 425, 429):  # before its words: "too many tokens, wait" will pass
        return Transient(says, retry_after(headers))
    if status == 401:
        return UserError(
            f"{at}.key_variable: the server does not take the key in {variable} ({says}); export "
            "a valid one under that name"
        )
    if _is_filtered(fault):
        return Rejected("filtered", says)
    if status == 403:
        return UserError(f"{at}.key_variable: the key in {variable} may not do this ({says})")
    if status in (404, 405) or (status in (400, 422) and _names_the_model(fault)):
        return UserError(
            f"{at}.model: the server has no {block['model']!r} for the {request.api} API ({says}); "
            f"check model, base_url and api of {at}"
        )
    if _is_too_long(fault):
        return Rejected("invalid", f"too long for the model ({says})")
    if status >= 500:
        return Transient(says, retry_after(headers))
    if status < 300:  # a reply that reports an error, or no JSON: a proxy's page, a broken server
        passes = fault.codes == {"None"} or fault.codes & _TRANSIENT
        return Transient(says) if passes else Rejected("unavailable", says)
    key = _parameter(fault) if status in (400, 422) else None
    if key == "structured":
        key = key if request.api == "chat" else "api"
        fix = "try another of json_schema, json_object, none" if key != "api" else "try api: chat"
        return UserError(
            f"{at}.{key}: the server does not take a schema in this form ({says}); {fix}"
        )
    if key:
        return UserError(f"{at}.{key}: the model does not take it ({says}); set it to null")
    if _quotes_the_model(fault, block["model"]):
        return UserError(f"{at}.model: the server does not take {block['model']!r} ({says})")
    return Rejected("invalid", says)


def _is_filtered(fault: Fault) -> bool:
    """Whether a filter held this one text back; gateways say so with 403 too."""
    if fault.status in (400, 403, 422) and (fault.flagged or _FILTERED.search(fault.message)):
        return True
    return fault.status < 500 and bool(fault.codes & _FILTERS)


def _is_too_long(fault: Fault) -> bool:
    if fault.status == 413 or fault.codes & _TOO_LONG:
        return True
    # A gateway may put the status that it got into a reply with status 200.
    meant = {str(fault.status)} if fault.status >= 300 else fault.codes
    about_the_text = meant & {str(status) for status in _ABOUT_THE_TEXT}
    return bool(about_the_text and _LENGTH.search(fault.message))


def _names_the_model(fault: Fault) -> bool:
    return fault.param == "model" or bool(fault.codes & _NO_MODEL)


def _quotes_the_model(fault: Fault, model: str) -> bool:
    """Whether the complaint is about the model's name, and not a quote of the judged text."""
    if fault.param or any(model in text for text in judged(fault.request)):
        return False
    return any(f"{q}{model}{q}" in fault.message for q in "'\"`")


def _parameter(fault: Fault) -> str | None:
    """Key of the configuration behind the parameter that a server complains about."""
    for name in sorted(_PARAMETERS, key=len, reverse=True):
        if fault.param == name or fault.param.startswith(f"{name}."):
            return _PARAMETERS[name]
    if fault.param:
        return None
    payload, texts = fault.request.payload, judged(fault.request)
    for name in sorted(_PARAMETERS, key=len, reverse=True):
        # A server may quote the text under judgement: a word that stands in it proves nothing.
        sent = name.partition(".")[0] in payload and name not in ("text", "reasoning")
        quoted = any(name in text for text in texts)
        if sent and not quoted and re.search(rf"\b{re.escape(name)}\b", fault.message):
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
