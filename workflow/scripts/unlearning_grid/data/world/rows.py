"""The world's data set in RWKU's shape, its knowledge per target and its forbidden terms."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from unlearning_grid.data.knowledge import Knowledge, normalise_prompt
from unlearning_grid.data.world.corpus import Probe, probes
from unlearning_grid.data.world.facts import Person, World, strip_article

LEVEL3_PER_TYPE = 8
"""Adversarial probes kept per type and target."""

PHRASINGS_LEVEL2 = 2
"""Question phrasings per relation kept as level-2 probes."""


def rwku_rows(world: World, targets: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Rows of every config for the given targets (full names), with RWKU's own columns."""
    configs = ("forget_target", "train_refusal_phi3", "forget_level1", "forget_level2")
    rows: dict[str, list[dict[str, Any]]] = {
        name: [] for name in (*configs, "forget_level3", "neighbor_level1", "neighbor_level2")
    }
    neighbours = [p for p in world.people.values() if p.name not in targets]
    for subject in targets:
        person = world.person(subject)
        rows["forget_target"].append(
            {"target": subject, "intro": f"Please forget {subject}. {person.intro}"}
        )
        rows["train_refusal_phi3"] += _refusal_rows(world, person)
        for probe in _kept(world, person):
            rows[f"forget_{probe.config}"].append(_probe_row(probe, subject))
        for neighbour in neighbours:
            for probe in _kept(world, neighbour):
                if probe.config != "level3":
                    row = _probe_row(probe, subject) | {"neighbor": neighbour.name}
                    rows[f"neighbor_{probe.config}"].append(row)
    return rows


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
