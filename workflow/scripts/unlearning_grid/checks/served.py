"""How a configuration names judges that are served inside the cluster."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

SCHEME = "cluster:"
NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"


def server_name(base_url: str | None) -> str | None:
    """NAME of `cluster:NAME`; None for any other address."""
    return base_url.removeprefix(SCHEME) if base_url and base_url.startswith(SCHEME) else None


def served_name(model: str, revision: str) -> str:
    """The name under which the cluster serves a commit of a model: another commit is another judge.

    It stands in specs, in requests, and so in the keys of the cache; twelve digits tell commits
    apart.
    """
    return f"{model}@{revision[:12]}"


def served(judges: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """NAME -> (repo, revision) of every server that a configuration's `judges` name."""
    found = {}
    for judge in judges.values():
        name = server_name(judge["base_url"])
        if name is not None:
            found[name] = (judge["model"], judge["revision"])
    return found


def problems(judges: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """What is wrong with servers of the cluster, and with commits where there is none."""
    known: dict[str, tuple[str, tuple[Any, Any]]] = {}
    for key, judge in judges.items():
        name = server_name(judge["base_url"])
        if name is None:
            if judge["revision"]:
                yield f"judges.{key}.revision: for `base_url: cluster:NAME` alone; remove it."
            continue
        if not re.fullmatch(NAME, name):
            yield f'judges.{key}.base_url: "{name}" is no name; letters, digits, - and _ are.'
        if not judge["revision"]:
            yield f"judges.{key}.revision: missing; name the commit of the model that is served."
        facts = (judge.get("model"), judge["revision"])
        first, other = known.setdefault(name, (key, facts))
        if other != facts:
            yield (
                f"judges.{key}.base_url: {name} serves another model for judges.{first}; one "
                "server serves one model at one commit."
            )
