"""A model behind OpenAI's API, or behind any server that speaks it."""

import logging
import os
from collections.abc import Mapping
from typing import Any

from unlearning_grid.errors import UserError

log = logging.getLogger(__name__)

RETRIES = 6  # the client's own, with backoff, for what is transient
TIMEOUT = 120.0  # seconds


def make_client(block: Mapping[str, Any]) -> Any:
    """The client of a `judges` entry. The key is read from the environment and kept nowhere else.

    Raises UserError when the key is not there.
    """
    from openai import OpenAI

    key = os.environ.get(block["key_variable"])
    if not key:
        raise UserError(
            f"judges.{block['name']}.key_variable: {block['key_variable']} is not set in the "
            "environment; export the key under that name"
        )
    url = os.path.expandvars(block["base_url"]) if block["base_url"] else None
    return OpenAI(api_key=key, base_url=url, max_retries=RETRIES, timeout=TIMEOUT)


def decoding(block: Mapping[str, Any]) -> dict[str, Any]:
    """Model and decoding parameters of a request, only those that the entry states."""
    names = {"temperature": "temperature", "effort": "reasoning_effort"}
    stated = {sent: block[name] for name, sent in names.items() if block[name] is not None}
    return {"model": block["model"], **stated}


def reply_text(client: Any, request: Mapping[str, Any]) -> str | None:
    """Text of a finished reply; None for a refusal, a cut-off reply or an error that stays."""
    from openai import OpenAIError

    try:
        choice = client.chat.completions.create(**request).choices[0]
    except OpenAIError as error:
        log.warning("no reply from %s: %s", request["model"], error)
        return None
    if choice.finish_reason != "stop" or choice.message.refusal:
        log.warning("no usable reply from %s: %s", request["model"], choice.finish_reason)
        return None
    return choice.message.content
