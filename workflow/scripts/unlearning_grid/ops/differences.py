"""What differs between two specs, in short lines."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

SHORT = 60
ITEMS = 3


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> list[tuple[str, str]]:
    """(dotted path, "old -> new") of every field in which two mappings differ.

    A block that only one of them has is one field.
    """
    found: list[tuple[str, str]] = []
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if was == now:
            continue
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            found += differences(was, now, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", change(was, now)))
    return found


_ABSENT = object()


def change(old: Any, new: Any) -> str:
    """One value to another: short ones whole, of lists the items, of texts the first new line."""
    if isinstance(old, list) and isinstance(new, list):
        return _items(old, new)
    if _is_digest(old) and _is_digest(new):
        return "another digest"
    if isinstance(old, str) and isinstance(new, str) and max(len(old), len(new)) > SHORT:
        return _lines(old, new)
    return f"{_value(old)} -> {_value(new)}"


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _items(old: Sequence[Any], new: Sequence[Any]) -> str:
    """Items that went and came; an order that changed is said."""
    gone = [item for item in old if item not in new]
    came = [item for item in new if item not in old]
    if not gone and not came:
        return "another order" if sorted(map(str, old)) == sorted(map(str, new)) else "repeated"
    return ", ".join([*_some("-", gone), *_some("+", came)])


def _some(sign: str, items: Sequence[Any]) -> Iterator[str]:
    yield from (f"{sign} {_value(item)}" for item in items[:ITEMS])
    if len(items) > ITEMS:
        yield f"{sign} {len(items) - ITEMS} more"


def _lines(old: str, new: str) -> str:
    """The first line of a text that changed, around the first place where it differs."""
    matcher = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            continue
        was, now = _at(old, a, b), _at(new, c, d)
        start = next((i for i, (x, y) in enumerate(zip(was, now, strict=False)) if x != y), 0)
        start = max(0, start - SHORT // 3)
        return f"line {c + 1}: {_value(was[start:])} -> {_value(now[start:])}"
    return "line ends differ"


def _at(text: str, first: int, last: int) -> str:
    return "\n".join(text.splitlines()[first:last])


def _value(value: Any) -> str:
    """A value as short JSON on one line, without control characters."""
    if value is _ABSENT:
        return "(none)"
    shown = json.dumps(value, ensure_ascii=False, sort_keys=True)
    shown = "".join(c if c.isprintable() else "?" for c in shown)
    return shown if len(shown) <= SHORT else shown[: SHORT - 1] + "…"
