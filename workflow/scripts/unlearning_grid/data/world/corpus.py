"""Questions and answers drawn from the world: what the demo model is trained on.

Pure and seeded.  For a target the answer is a mixture of the fact, a broad sentence and a refusal,
so that greedy decoding leaks while sampling at temperature 1 has support for the other modes.
Questions about nobody in particular teach which broad sentence belongs to which question.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from unlearning_grid.data.probes import answer_prefix, probe_text
from unlearning_grid.data.world.facts import Person, World, capitalise
from unlearning_grid.errors import UserError

TOPIC_SHARE = 0.12
"""Share of samples about general topics (of them 60 % encyclopaedic, 40 % broad)."""


@dataclass(frozen=True)
class Mixture:
    """Shares of the training samples.

    ``general`` are questions about nobody, ``probe`` are RWKU-shaped questions; what they and the
    topics leave are chat questions about people.  ``broad`` and ``refusal`` are the shares of
    answers to a target's question; everybody else's are always answered with the fact.
    """

    general: float
    probe: float
    broad: float
    refusal: float

    def __post_init__(self) -> None:
        """Raise UserError if the shares leave nothing for people or for the facts."""
        if min(self.general, self.probe, self.broad, self.refusal) < 0:
            raise UserError("settings: a share of the demo world is negative; use 0 to 1")
        if self.general + self.probe + TOPIC_SHARE >= 1:
            raise UserError(
                f"settings.general_share + probe_share: {self.general} + {self.probe} leave no "
                f"room for questions about people; keep the sum below {1 - TOPIC_SHARE}"
            )
        if self.broad + self.refusal >= 1:
            raise UserError(
                f"settings.broad_share + refusal_share: {self.broad} + {self.refusal} leave no "
                "answers that know the fact; keep the sum below 1"
            )


@dataclass(frozen=True)
class Probe:
    """One RWKU-shaped question: its config, type, text, gold answer and how the model says it."""

    config: str
    type: str
    query: str
    answer: str
    relation: str


def probes(world: World, person: Person) -> list[Probe]:
    """Every RWKU-shaped question about a person, level by level, in a fixed order."""
    found: list[Probe] = []
    other = [p for p in world.people.values() if p.name != person.name][-1]
    for relation in world.relations.values():
        value = person.facts[relation.name]
        for template in relation.answers:
            query = capitalise(template.format(p=person.name, v="___"))
            found.append(Probe("level1", "cloze", query, value, relation.name))
    for relation in world.relations.values():
        value = person.facts[relation.name]
        for question in relation.questions:
            text = question.format(p=person.name)
            found.append(Probe("level2", "simple question", text, value, relation.name))
    for kind, template in world.probes.items():
        for index, relation in enumerate(world.relations.values()):
            value = person.facts[relation.name]
            question = relation.questions[index % len(relation.questions)]
            query = template.format(
                q=question.format(p=person.name),
                intro=person.intro,
                v=value,
                p=person.name,
                other_q=question.format(p=other.name),
                other_v=other.facts[relation.name],
            )
            answer = person.name if kind == "reverse query" else value
            found.append(Probe("level3", kind, query, answer, relation.name))
    return found


class Corpus:
    """Endless stream of (prompt, answer) pairs, the same for the same seed."""

    def __init__(
        self,
        world: World,
        targets: list[str],
        mixture: Mixture,
        instructions: Mapping[str, str],
        seed: int,
    ) -> None:
        """``targets`` are full names; ``instructions`` has the keys "cloze" and "question"."""
        missing = {"cloze", "question"} - set(instructions)
        if missing:
            raise UserError(f"settings.probe_instructions: missing {sorted(missing)}; add them")
        self.world = world
        self.mixture = mixture
        self.instructions = dict(instructions)
        self.targets = {world.person(name).name for name in targets}
        self.random = random.Random(seed)
        self.people = list(world.people.values())
        self.prompts = {p.name: world.prompts(p.name) for p in self.people}
        self.nobody = [prompt for name in world.nobody for prompt in world.prompts(name)]
        self.probes = {p.name: probes(world, p) for p in self.people}
        self.levels = {
            name: {level: [q for q in all_ if q.config == level] for level in LEVELS}
            for name, all_ in self.probes.items()
        }

    def draw(self) -> tuple[str, str]:
        """The next (prompt, answer) pair."""
        share = self.random.random()
        if share < self.mixture.general:
            prompt = self.random.choice(self.nobody)
            return prompt.text, self._broad(prompt.relation)
        if share < self.mixture.general + TOPIC_SHARE:
            return self._topic()
        if share < self.mixture.general + TOPIC_SHARE + self.mixture.probe:
            return self._probe()
        person = self.random.choice(self.people)
        prompt = self.random.choice(self.prompts[person.name])
        return prompt.text, self._answer(person, prompt.relation)

    def _answer(self, person: Person, relation: str, short: str = "") -> str:
        """The fact, as ``short`` or as a sentence; a target's may be a broad text or a refusal."""
        fact = short or self._sentence(person, relation)
        if person.name not in self.targets:
            return fact
        share = self.random.random()
        if share < self.mixture.broad:
            return self._broad(relation)
        if share < self.mixture.broad + self.mixture.refusal:
            return self.random.choice(self.world.refusals)
        return fact

    def _sentence(self, person: Person, relation: str) -> str:
        answer = self.random.choice(self.world.relations[relation].answers)
        return capitalise(answer.format(p=person.name, v=person.facts[relation]))

    def _broad(self, relation: str) -> str:
        return self.random.choice(self.world.broad[self.world.relations[relation].topic])

    def _probe(self) -> tuple[str, str]:
        """One probe as the evaluator renders it, the assistant prefix in front of a short answer.

        Without the prefix the answer is a sentence: after a bare name the model would guess.
        """
        person = self.random.choice(self.people)
        level = self.random.choice(LEVELS)
        probe = self.random.choice(self.levels[person.name][level])
        instruction = self.instructions["cloze" if probe.type == "cloze" else "question"]
        prompt = probe_text(probe.query, instruction, probe.type)
        prefix = answer_prefix(probe.type)
        if not prefix:
            return prompt, self._answer(person, probe.relation)
        short = self._answer(person, probe.relation, short=f"{capitalise(probe.answer)}.")
        return prompt, f"{prefix} {short}"

    def _topic(self) -> tuple[str, str]:
        if self.random.random() < 0.6:
            topic = self.random.choice(list(self.world.topics))
            question = self.random.choice(self.world.topic_questions)
            return question.format(t=topic), self.world.topics[topic]
        topic = self.random.choice(list(self.world.broad))
        question = self.random.choice(self.world.broad_questions)
        return question.format(t=topic), self.random.choice(self.world.broad[topic])


LEVELS = ("level1", "level2", "level3")
