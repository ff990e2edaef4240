"""What the jobs of a grid take from the Hugging Face hub, read off their specs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from unlearning_grid.checks.served import served, server_name
from unlearning_grid.spec.plan import planned
from unlearning_grid.spec.stages import Specs


@dataclass
class Need:
    """One repository at one commit.

    Attributes:
        kind: "model" or "dataset".
        revision: None while neither the configuration nor the lock file has one.
        key: where the configuration names it.
        configs: of a data set, the configs that are read.
        jobs: result folders of the jobs that read it.
        locked: the commit is the lock file's, not the configuration's.
        optional: jobs look for it in the cache and do without.
    """

    kind: str
    repo: str
    revision: str | None
    key: str
    configs: set[str] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    locked: bool = False
    optional: bool = True

    def __str__(self) -> str:
        commit = f"at {self.revision}" if self.revision else "without a commit"
        return f"{self.kind} {self.repo} {commit} ({self.key})"


def needs(specs: Specs) -> list[Need]:
    """Every repository of a grid, models first, each once per commit.

    A spec names what its job loads, so this holds for every rule, without a list of rules.
    """
    config = specs.config
    found: dict[tuple[str, str, str], Need] = {}
    servers = served(config["judges"])

    def add(
        folder: str, kind: str, repo: str, revision: str | None, optional: bool = False
    ) -> Need:
        new = Need(kind, repo, revision, _key(config.values, repo) or kind)
        need = found.setdefault((kind, repo, str(revision)), new)
        need.jobs.add(folder)
        need.optional &= optional
        return need

    for folder, rule, cell in planned(specs):
        settings = dict(specs.spec(rule, **cell)["settings"])
        for facts in _blocks(settings.pop("compare", [])):
            add(folder, "model", facts["repo"], facts["revision"], optional=True)
        for facts in _blocks(settings):
            if facts.get("kind") == "hub":
                need = add(folder, "dataset", facts["repo"], facts["revision"])
                need.configs |= set(settings["configs"])
                need.locked = config["data"]["revision"] is None
            elif facts.get("repo"):
                add(folder, "model", facts["repo"], facts["revision"])
            elif name := server_name(facts.get("base_url")):
                add(folder, "model", *servers[name])
    return sorted(found.values(), key=lambda n: (n.kind != "model", n.repo, n.revision or ""))


def _blocks(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping inside a value that names a repository or a served judge."""
    if isinstance(value, Mapping):
        if "repo" in value or "base_url" in value:
            yield value
        for inner in value.values():
            yield from _blocks(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _blocks(inner)


def _key(value: Any, repo: str, path: str = "") -> str | None:
    """Path of the first key, in order, that holds the name of a repository."""
    if value == repo:
        return path
    items: Any = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, list):
        items = enumerate(value)
    for name, inner in items:
        if at := _key(inner, repo, f"{path}.{name}".lstrip(".")):
            return at
    return None
