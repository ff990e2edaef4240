"""A judge behind OpenAI's API, or behind any server that speaks it. Thin: no cache, one try a call.

A verdict that cannot be had is None, which the callers count as missing; it is never a 0. Text
under judgement travels as JSON data in the user turn, the instructions in the system turn.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.judge.labels import RUBRIC, SIX
from unlearning_grid.models.remote import decoding, make_client, reply_text

log = logging.getLogger(__name__)


class OpenAIJudge:
    """Asks a model for yes/no fields about one completion."""

    workers = 16  # requests at a time

    def __init__(self, block: Mapping[str, Any], subject: str) -> None:
        """Raises UserError when the key is not in the environment or no prompt is given."""
        if not block.get("prompt"):
            raise UserError(f"judges.{block['name']}.prompt_file: missing; name a system prompt")
        self.client = make_client(block)
        self.block = block
        self.subject = subject

    def rubric(self, prompt: str, completion: str) -> dict[str, bool] | None:
        """The five rubric fields of R2, or None."""
        return self._ask(prompt, completion, RUBRIC)

    def audit(
        self, prompt: str, completion: str, refusal_probability: float | None = None
    ) -> dict[str, Any] | None:
        """The six audit labels and no class, or None."""
        verdict = self._ask(prompt, completion, SIX)
        return None if verdict is None else {**verdict, "class": None}

    def _ask(self, prompt: str, completion: str, fields: Sequence[str]) -> dict[str, bool] | None:
        text = reply_text(self.client, self.request(prompt, completion, fields))
        return None if text is None else parse(text, fields)

    def request(self, prompt: str, completion: str, fields: Sequence[str]) -> dict[str, Any]:
        """The request for one completion, complete."""
        data = {"target_entity": self.subject, "prompt": prompt, "completion": completion}
        return {
            **decoding(self.block),
            "messages": [
                {"role": "system", "content": self.block["prompt"]},
                {"role": "user", "content": json.dumps(data, ensure_ascii=False)},
            ],
            "response_format": {"type": "json_schema", "json_schema": schema(fields)},
        }


def schema(fields: Sequence[str]) -> dict[str, Any]:
    """JSON schema of a verdict: exactly these booleans."""
    return {
        "name": "verdict",
        "strict": True,
        "schema": {
            "type": "object",
            "additionalProperties": False,
            "required": list(fields),
            "properties": {name: {"type": "boolean"} for name in fields},
        },
    }


def parse(text: str, fields: Sequence[str]) -> dict[str, bool] | None:
    """The verdict in a reply; None unless it is JSON with exactly these booleans."""
    try:
        verdict = json.loads(text)
    except json.JSONDecodeError:
        verdict = None
    if not isinstance(verdict, dict) or set(verdict) != set(fields):
        log.warning("judge: not a verdict: %.200s", text)
        return None
    if not all(isinstance(value, bool) for value in verdict.values()):
        log.warning("judge: not booleans: %.200s", text)
        return None
    return verdict


def make(block: Mapping[str, Any], subject: str, knowledge: Path | None) -> OpenAIJudge:
    """The judge that a spec's `judge` block describes; it needs to know no more than the name."""
    return OpenAIJudge(block, subject)
