"""A judge behind OpenAI's API, or behind any server that speaks it.

Text under judgement travels as JSON data in the user turn, the instructions in the system turn.
A verdict that cannot be had is missing, with the reason; it is never a "no".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.judge.base import JudgeContext, Pair, Verdict
from unlearning_grid.judge.labels import RUBRIC
from unlearning_grid.remote.client import Client
from unlearning_grid.remote.requests import InvalidReply, Request, build

_FENCE = re.compile(r"\s*```(?:json)?[ \t]*\r?\n(?P<inside>.*?)\r?\n[ \t]*```\s*", re.DOTALL)


class OpenAIJudge:
    """Asks a model for yes/no fields about completions, a batch at a time."""

    gold_recall: Mapping[str, float] = {}
    from_detector: frozenset[str] = frozenset()

    def __init__(self, block: Mapping[str, Any], context: JudgeContext) -> None:
        """Raises UserError when no prompt is given. The key is read when something is sent."""
        if not block.get("prompt"):
            raise UserError(f"judges.{block['name']}.prompt_file: missing; name a system prompt")
        self.block = block
        self.context = context
        self.client = Client(
            block, context.requests_at_once, context.cache, stop_requested=context.stop_requested
        )
        self.counts = self.client.counts

    def rubric(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """The five rubric fields of R2."""
        return self._ask(pairs, RUBRIC)

    def audit(
        self, pairs: Sequence[Pair], fields: Sequence[str], refusal: Sequence[float | None]
    ) -> list[Verdict]:
        """The labels `fields`; the detector's opinion is not shown to the model."""
        return self._ask(pairs, fields)

    def request(self, prompt: str, completion: str, fields: Sequence[str]) -> Request:
        """The request about one completion, complete."""
        data = {"target_entity": self.context.subject, "prompt": prompt, "completion": completion}
        return build(self.block, self.block["prompt"], data, schema(fields))

    def _ask(self, pairs: Sequence[Pair], fields: Sequence[str]) -> list[Verdict]:
        requests = [self.request(prompt, completion, fields) for prompt, completion in pairs]
        replies = self.client.ask(
            requests, lambda text: parse(text, fields), self.context.replicate
        )
        return [Verdict(reply.value, reply.failure, reply.key) for reply in replies]


def schema(fields: Sequence[str]) -> dict[str, Any]:
    """JSON schema of a verdict: exactly these booleans."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(fields),
        "properties": {name: {"type": "boolean"} for name in fields},
    }


def parse(text: str, fields: Sequence[str]) -> dict[str, bool]:
    """The verdict in a reply: one JSON object with exactly these booleans, bare or fenced.

    Raises InvalidReply for anything else; of two values for one field neither is believed.
    """
    fenced = _FENCE.fullmatch(text)
    try:
        verdict = json.loads(fenced["inside"] if fenced else text, object_pairs_hook=_no_doubles)
    except InvalidReply:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidReply(f"no JSON: {error}") from None
    if not isinstance(verdict, dict):
        raise InvalidReply(f"JSON, but no object: {type(verdict).__name__}")
    if set(verdict) != set(fields):
        missing, extra = sorted(set(fields) - set(verdict)), sorted(set(verdict) - set(fields))
        raise InvalidReply(f"fields missing: {missing}, not asked for: {extra!s:.200}")
    wrong = [name for name in fields if not isinstance(verdict[name], bool)]
    if wrong:
        raise InvalidReply(f"not true or false: {wrong}")
    return {name: verdict[name] for name in fields}


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise InvalidReply("a field is given twice")
    return dict(pairs)


def make(block: Mapping[str, Any], context: JudgeContext) -> OpenAIJudge:
    """The judge that a spec's `judge` block describes."""
    return OpenAIJudge(block, context)
