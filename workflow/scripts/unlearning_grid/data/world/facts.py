"""The world file as checked, immutable objects: who is known, what is asked, what is answered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unlearning_grid.errors import UserError

SECTIONS = (
    "people",
    "nobody",
    "relations",
    "kinds",
    "wrappers",
    "probes",
    "broad",
    "broad_questions",
    "refusals",
    "topics",
    "topic_questions",
)

REASONED_ABOUT = ("birthyear", "deathyear")
"""Relations whose values the reasoning set compares."""


@dataclass(frozen=True)
class Person:
    """One known person; ``facts`` maps a relation to its value, the article included."""

    slug: str
    name: str
    intro: str
    facts: Mapping[str, str]

    @property
    def names(self) -> list[str]:
        """Full name first, then its parts (the surname among them)."""
        return [self.name, *self.name.split()]

    @property
    def values(self) -> list[str]:
        """Fact values without a leading article, in the file's order."""
        return [strip_article(value) for value in self.facts.values()]


@dataclass(frozen=True)
class Relation:
    """One kind of fact: question phrasings with {p}, answer sentences with {p} and {v}."""

    name: str
    topic: str
    questions: tuple[str, ...]
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Prompt:
    """One question about one person (or about nobody in particular)."""

    text: str
    relation: str


@dataclass(frozen=True)
class World:
    """The whole world file."""

    people: Mapping[str, Person]
    relations: Mapping[str, Relation]
    kinds: Mapping[str, tuple[str, ...]]
    nobody: tuple[str, ...]
    wrappers: tuple[str, ...]
    probes: Mapping[str, str]
    broad: Mapping[str, tuple[str, ...]]
    broad_questions: tuple[str, ...]
    refusals: tuple[str, ...]
    topics: Mapping[str, str]
    topic_questions: tuple[str, ...]

    def person(self, subject: str) -> Person:
        """The person of that full name.  Raises UserError if the world has no such person."""
        for person in self.people.values():
            if person.name == subject:
                return person
        names = sorted(p.name for p in self.people.values())
        raise UserError(f"settings.targets: the world knows no {subject!r}; choose from {names}")

    def prompts(self, name: str) -> list[Prompt]:
        """All chat questions about ``name``: phrasings x wrappers, less one per relation.

        With 20 relations, 4 phrasings and 4 wrappers that is 20 x 15 = 300, RWKU's number of
        rows per target.  The one left out moves on from relation to relation.
        """
        found = []
        for index, relation in enumerate(self.relations.values()):
            texts = [
                w.format(q=q.format(p=name)) for w in self.wrappers for q in relation.questions
            ]
            del texts[index % len(texts)]
            found += [Prompt(text, relation.name) for text in texts]
        return found


def strip_article(value: str) -> str:
    """A value without a leading "the": the form in which it is matched and scored."""
    return re.sub(r"^the ", "", value, flags=re.IGNORECASE)


def capitalise(text: str) -> str:
    """The text with a capital first letter, the rest untouched."""
    return text[:1].upper() + text[1:]


def parse_world(raw: Mapping[str, Any]) -> World:
    """Check the content of a world file.  Raises UserError naming the faulty key."""
    missing = [section for section in SECTIONS if not raw.get(section)]
    unknown = sorted(set(raw) - set(SECTIONS))
    if missing or unknown:
        raise UserError(
            f"world file: missing or empty sections {missing}, unknown sections {unknown}; "
            "see resources/demo/world.yaml"
        )
    relations = {
        name: Relation(name, entry["topic"], tuple(entry["questions"]), tuple(entry["answers"]))
        for name, entry in raw["relations"].items()
    }
    people = {
        slug: Person(slug, entry["name"], entry["intro"], dict(entry["facts"]))
        for slug, entry in raw["people"].items()
    }
    world = World(
        people=people,
        relations=relations,
        kinds={kind: tuple(names) for kind, names in raw["kinds"].items()},
        nobody=tuple(raw["nobody"]),
        wrappers=tuple(raw["wrappers"]),
        probes=dict(raw["probes"]),
        broad={topic: tuple(lines) for topic, lines in raw["broad"].items()},
        broad_questions=tuple(raw["broad_questions"]),
        refusals=tuple(raw["refusals"]),
        topics=dict(raw["topics"]),
        topic_questions=tuple(raw["topic_questions"]),
    )
    _check(world)
    return world


def _check(world: World) -> None:
    """Raise UserError where the parts of the world do not fit together."""
    for relation in world.relations.values():
        if relation.topic not in world.broad:
            raise UserError(
                f"world file: relations.{relation.name}.topic: {relation.topic!r} is no key of "
                "broad"
            )
        bad = [q for q in relation.questions if not q.endswith("?") or "{p}" not in q]
        if bad:
            raise UserError(
                f"world file: relations.{relation.name}.questions: {bad} must hold {{p}} and end "
                'in "?"'
            )
    lacking = [name for name in REASONED_ABOUT if name not in world.relations]
    if lacking:
        raise UserError(
            f"world file: relations: {lacking} are missing; the utility set compares them"
        )
    for kind, names in world.kinds.items():
        unknown = sorted(set(names) - set(world.relations))
        if unknown:
            raise UserError(f"world file: kinds.{kind}: {unknown} are no relations")
    sentences = [t for r in world.relations.values() for t in (*r.questions, *r.answers)]
    twice = sorted({text for text in sentences if sentences.count(text) > 1})
    if twice:
        raise UserError(f"world file: relations: {twice} stand for two facts; reword one of each")
    for slug, person in world.people.items():
        if set(person.facts) != set(world.relations):
            odd = sorted(set(person.facts) ^ set(world.relations))
            raise UserError(f"world file: people.{slug}.facts: differ from the relations in {odd}")
        not_text = [name for name, value in person.facts.items() if not isinstance(value, str)]
        if not_text:
            raise UserError(f"world file: people.{slug}.facts: quote the values of {not_text}")
