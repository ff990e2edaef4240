"""What tables call a judge. Imported where results are described, never where they are made."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

DECODING = ("effort", "temperature", "max_output_tokens")
LOWER_BOUND, ORACLE, SURFACE = "rules:lower-bound", "rules:oracle", "rules:surface"


def judge_name(block: Mapping[str, Any]) -> str:
    """An audit's judge: which rules, or model, server and decoding as stated.

    Two entries with another decoding are two judges, "openai:gpt-x effort=low".
    """
    if block["provider"] == "rules":
        return LOWER_BOUND if block["knowledge"] == "answers" else ORACLE
    server = f"@{block['base_url']}" if block.get("base_url") else ""
    stated = [f"{key}={block[key]}" for key in DECODING if block.get(key) is not None]
    return " ".join([f"{block['provider']}:{block['model']}{server}", *stated])


def prompt_name(block: Mapping[str, Any]) -> str | None:
    """Name of the judge's prompt and eight digits of its digest; None for a judge without one."""
    if not block.get("prompt"):
        return None
    return f"{block['prompt_name']} {hashlib.sha256(block['prompt'].encode()).hexdigest()[:8]}"


def instruments(reward: Mapping[str, Any]) -> dict[str, str | None]:
    """Judge, its prompt and detector behind a reward (its block in a spec).

    In a closed world the rules that give a reward are others than those that audit: they look at
    surface forms only. On real rows both are the lower bound.
    """
    judge = reward.get("judge")
    name = judge_name(judge) if judge else None
    return {
        "judge": SURFACE if name == ORACLE else name,
        "judge_prompt": prompt_name(judge) if judge else None,
        "detector": reward["detector"]["name"] if "detector" in reward else None,
    }


def same_model(one: str | None, other: str | None) -> bool | None:
    """Whether two judges are one model, whatever the decoding; None where one is not known."""
    if not one or not other:
        return None
    return one.partition(" ")[0] == other.partition(" ")[0]
