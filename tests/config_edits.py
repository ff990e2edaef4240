"""Edits of the checkout's configurations, and the problems that they make."""

from collections.abc import Callable
from typing import Any

import pytest

from support import config
from unlearning_grid.config import load
from unlearning_grid.errors import UserError

Raw = dict[str, Any]


def put(path: str, value: Any) -> Callable[[Raw], None]:
    """An edit that sets one key, given with slashes."""

    def edit(raw: Raw) -> None:
        *blocks, last = path.split("/")
        for block in blocks:
            raw = raw.setdefault(block, {})
        raw[last] = value

    return edit


def problems(raw: Raw) -> list[str]:
    """The listed problems of a configuration that must be refused."""
    with pytest.raises(UserError) as caught:
        load(raw)
    head, *lines = str(caught.value).splitlines()
    assert head == f"the configuration has {len(lines)} problem(s):"
    assert all(line.startswith("  - ") for line in lines)
    return [line.removeprefix("  - ") for line in lines]


def problems_of(name: str, *edits: Callable[[Raw], None]) -> list[str]:
    raw = config(name)
    for edit in edits:
        edit(raw)
    return problems(raw)
