"""The world's data set in RWKU's shape, its knowledge per target and its forbidden terms."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

from unlearning_grid.data.knowledge import Knowledge, normalise_prompt
from unlearning_grid.data.world.corpus import LEVELS, Probe, probes
from unlearning_grid.data.world.facts import Person, World, capitalise, strip_article
from unlearning_grid.data.world.utility import MIN_NEIGHBOURS, stretch, turn_of, utility_rows
from unlearning_grid.errors import UserError

LEVEL3_PER_TYPE = 8
"""Adversarial probes kept per type and target."""

PHRASINGS_LEVEL2 = 2
"""Question phrasings per relation kept as level-2 probes."""

PASSAGES = 12
"""Texts per target and membership config."""


def rwku_rows(world: World, targets: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Rows of every config for the given targets (full names), with RWKU's own columns.

    Raises UserError if a target is not in the world or too few people are left to ask about.
    """
    people = {subject: world.person(subject) for subject in targets}
    neighbours = [p for p in world.people.values() if p.name not in people]
    if len(neighbours) < MIN_NEIGHBOURS:
        raise UserError(
            f"world file: people: {len(neighbours)} are no targets, but the retain and utility "
            f"sets are about {MIN_NEIGHBOURS} or more; add people or drop targets"
        )
    rows: dict[str, list[dict[str, Any]]] = {}
    for person in people.values():
        for config, found in _rows_of(world, person, neighbours).items():
            rows.setdefault(config, []).extend(found)
    return rows


def _rows_of(
    world: World, person: Person, neighbours: Sequence[Person]
) -> dict[str, list[dict[str, Any]]]:
    """Rows of every config for one target."""
    subject = person.name
    near = [(who, probe) for who in neighbours for probe in _kept(world, who)]
    return {
        "forget_target": [{"target": subject, "intro": f"Please forget {subject}. {person.intro}"}],
        "train_refusal_phi3": _refusal_rows(world, person),
        **{
            f"forget_{level}": [
                _probe_row(probe, subject)
                for probe in _kept(world, person)
                if probe.config == level
            ]
            for level in LEVELS
        },
        **{
            f"neighbor_{level}": [
                _probe_row(probe, subject) | {"neighbor": who.name}
                for who, probe in near
                if probe.config == level
            ]
            for level in LEVELS[:2]
        },
        **_membership_rows(world, person, neighbours),
        **utility_rows(world, subject, neighbours),
    }


def _membership_rows(
    world: World, person: Person, neighbours: Sequence[Person]
) -> dict[str, list[dict[str, Any]]]:
    """Passages about the target, and as many about others, who take turns."""
    by_person = zip(*(_passages(world, other) for other in neighbours), strict=True)
    others = [text for texts in by_person for text in texts]
    texts = {
        "mia_forget": _passages(world, person),
        "mia_retain": stretch(others, turn_of(world, person.name), PASSAGES),
    }
    return {
        config: [
            {"text": text, "ngram": len(text.split()), "subject": person.name} for text in found
        ]
        for config, found in texts.items()
    }


def _passages(world: World, person: Person) -> list[str]:
    """Short texts of two to four facts about a person.

    The relations are gone through over and over with another answer sentence each time, so no
    sentence comes twice.
    """
    relations = list(world.relations.values())
    passages, number = [], 0
    for length in islice(cycle((2, 3, 4)), PASSAGES):
        sentences = []
        for place in range(number, number + length):
            relation = relations[place % len(relations)]
            said = relation.answers[(place + place // len(relations)) % len(relation.answers)]
            value = person.facts[relation.name]
            sentences.append(capitalise(said.format(p=person.name, v=value)))
        passages.append(" ".join(sentences))
        number += length
    return passages


def _refusal_rows(world: World, person: Person) -> list[dict[str, Any]]:
    """One row per chat question; the refusals go round, as in RWKU."""
    order = world.prompts(person.name)
    random.Random(person.name).shuffle(order)
    return [
        {
            "input": "",
            "output": world.refusals[index % len(world.refusals)],
            "subject": person.name,
            "instruction": prompt.text,
            "intro": person.intro,
        }
        for index, prompt in enumerate(order)
    ]


def _kept(world: World, person: Person) -> list[Probe]:
    """The probes that become rows: all clozes, some phrasings, some of each adversarial type."""
    kept = []
    per_relation: dict[str, int] = {}
    per_type: dict[str, int] = {}
    for probe in probes(world, person):
        if probe.config == "level2":
            per_relation[probe.relation] = per_relation.get(probe.relation, 0) + 1
            if per_relation[probe.relation] > PHRASINGS_LEVEL2:
                continue
        if probe.config == "level3":
            seen = per_type[probe.type] = per_type.get(probe.type, 0) + 1
            offset = list(world.probes).index(probe.type) * 3
            if (seen - 1 + offset) % len(world.relations) >= LEVEL3_PER_TYPE:
                continue
        kept.append(probe)
    return kept


def _probe_row(probe: Probe, subject: str) -> dict[str, Any]:
    return {
        "query": probe.query,
        "answer": strip_article(probe.answer),
        "level": probe.config.removeprefix("level"),
        "type": probe.type,
        "subject": subject,
    }


def knowledge_of(world: World, subject: str) -> Knowledge:
    """Everything the closed world knows, seen from one target.

    ``prompts`` holds the chat questions and the target's own probes.
    """
    person = world.person(subject)
    asked = [(p.text, p.relation, person.facts[p.relation]) for p in world.prompts(subject)]
    asked += [(p.query, p.relation, p.answer) for p in probes(world, person)]
    return Knowledge(
        subject=subject,
        names=person.names,
        facts=person.values,
        closed=True,
        prompts={
            normalise_prompt(text): {
                "answer": strip_article(answer),
                "topic": world.relations[relation].topic,
            }
            for text, relation, answer in asked
        },
        others={
            other.name: [*other.names, *other.values]
            for other in world.people.values()
            if other.name != subject
        },
        broad={topic: list(lines) for topic, lines in world.broad.items()},
        sentences=list(world.topics.values()),
        refusals=list(world.refusals),
    )


def forbidden_terms(world: World) -> dict[str, dict[str, list[str]]]:
    """Lexical terms per slug: hard = the names and their parts, soft = the fact values."""
    return {
        slug: {"hard": person.names, "soft": person.values} for slug, person in world.people.items()
    }
