"""Names of the rewards. Not part of any digest: a new entry here touches no finished cell."""

from __future__ import annotations

import importlib

from unlearning_grid.errors import UserError
from unlearning_grid.rewards.base import Reward

REWARDS: dict[str, str] = {
    "r0-lex": "unlearning_grid.rewards.lexical:LexicalReward",
    "r1-antirefusal": "unlearning_grid.rewards.antirefusal:AntiRefusalReward",
    "r2-rubric": "unlearning_grid.rewards.rubric:RubricReward",
    "r3-fuzzy": "unlearning_grid.rewards.fuzzy:FuzzyReward",
    "r4-refusal": "unlearning_grid.rewards.refusal:RefusalReward",
    "exp-lex": "unlearning_grid.rewards.exponential:ExponentialReward",
    "pagerank-lex": "unlearning_grid.rewards.pagerank:PagerankReward",
}
"""Reward name -> "module:class"."""


def module(name: str) -> str:
    """Dotted module of a reward, for its code digest. Raises UserError for an unknown name."""
    return _path(name)[0]


def load(name: str) -> type[Reward]:
    """Import and return a reward class. Raises UserError for an unknown name."""
    module_name, class_name = _path(name)
    return getattr(importlib.import_module(module_name), class_name)


def _path(name: str) -> tuple[str, str]:
    if name not in REWARDS:
        raise UserError(f"reward {name!r} is unknown; one of {sorted(REWARDS)}")
    module_name, _, class_name = REWARDS[name].partition(":")
    return module_name, class_name
