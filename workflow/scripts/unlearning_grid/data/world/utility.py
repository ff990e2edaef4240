"""The world's utility sets in RWKU's shape: what a model should still know and do.

All of it is about topics and people who are no targets, never about a target.  Pools are shuffled
once with a fixed seed; each target gets a stretch of its own, as long as the pool is large enough.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeVar

from unlearning_grid.data.world.facts import Person, Relation, World, capitalise, strip_article
from unlearning_grid.errors import UserError

GENERAL_PER_TASK = 4
EXAMPLES = 5
"""Worked examples of a multiple-choice question, the same for a whole task, as in MMLU."""

REASON_PER_TASK = 4
REASON_EXAMPLES = 3
TRUTHFULNESS = 8
FACTUALITY = 12
FLUENCY = 8

MIN_NEIGHBOURS = 3
"""With fewer there are too few wrong choices and too few pairs to compare."""

Row = dict[str, Any]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Claim:
    """A question with its true answer, false answers of the same kind and ways to say them.

    ``said`` are sentences with {v}: true with ``true``, false with any of ``false``.
    """

    question: str
    true: str
    false: tuple[str, ...]
    said: tuple[str, ...]


def utility_rows(world: World, subject: str, neighbours: Sequence[Person]) -> dict[str, list[Row]]:
    """Rows of RWKU's five utility configs for one target, with RWKU's own columns.

    ``neighbours`` are the people who are no targets, MIN_NEIGHBOURS at least.  Raises UserError if
    the world knows too little of one kind.
    """
    turn = turn_of(world, subject)
    sets = {
        "utility_general": _general(world, neighbours, turn),
        "utility_reason": _reason(world, neighbours, turn),
        "utility_truthfulness": _truthfulness(world, neighbours, turn),
        "utility_factuality": _factuality(world, neighbours, turn),
        "utility_fluency": _fluency(world, turn),
    }
    return {name: [row | {"subject": subject} for row in rows] for name, rows in sets.items()}


def turn_of(world: World, subject: str) -> int:
    """Place of a person in the world: which stretch of a pool is theirs."""
    return list(world.people).index(world.person(subject).slug)


def stretch(pool: Sequence[Item], turn: int, count: int) -> list[Item]:
    """``count`` neighbouring items of a pool, the next ones for the next turn, round and round."""
    return [pool[(turn * count + index) % len(pool)] for index in range(count)]


# ---- claims -----------------------------------------------------------------------------------


def _claims(world: World, neighbours: Sequence[Person], task: str) -> list[Claim]:
    """Everything that can be asked of one kind of fact, or of the topics, in a shuffled order."""
    made = _topic_claims(world) if task == "topics" else _fact_claims(world, neighbours, task)
    claims = list(made)
    needed = EXAMPLES + GENERAL_PER_TASK
    if len(claims) < needed:
        raise UserError(
            f"world file: {len(claims)} questions about {task}, but a utility set takes {needed}; "
            "add topics, or relations to that entry of kinds"
        )
    random.Random(task).shuffle(claims)
    return claims


def _fact_claims(world: World, neighbours: Sequence[Person], kind: str) -> Iterator[Claim]:
    relations = [world.relations[name] for name in world.kinds[kind]]
    values = [person.facts[r.name] for person in neighbours for r in relations]
    for person, relation, question in _questions(neighbours, relations):
        value = person.facts[relation.name]
        yield Claim(
            question,
            value,
            # a person's own other values would be wrong, too, but not plainly so
            false=tuple(other for other in values if other not in person.facts.values()),
            said=tuple(answer.replace("{p}", person.name) for answer in relation.answers),
        )


def _questions(
    people: Sequence[Person], relations: Sequence[Relation]
) -> Iterator[tuple[Person, Relation, str]]:
    """One question per person and relation; the phrasings go round."""
    for first, person in enumerate(people):
        for number, relation in enumerate(relations, start=first):
            phrasing = relation.questions[number % len(relation.questions)]
            yield person, relation, phrasing.format(p=person.name)


def _topic_claims(world: World) -> Iterator[Claim]:
    for number, (topic, sentence) in enumerate(world.topics.items()):
        question = world.topic_questions[number % len(world.topic_questions)].format(t=topic)
        false = tuple(other for other in world.topics.values() if other != sentence)
        yield Claim(question, sentence, false, said=("{v}",))


# ---- the five sets ----------------------------------------------------------------------------


def _general(world: World, neighbours: Sequence[Person], turn: int) -> list[Row]:
    """Like MMLU: each letter is right equally often."""
    rows = []
    for number, task in enumerate([*world.kinds, "topics"]):
        claims = _claims(world, neighbours, task)
        shown = [
            _choices(claim, place=(3 * index + number + 1) % 4) | {"subject": task}
            for index, claim in enumerate(claims[:EXAMPLES])
        ]
        for index, claim in enumerate(stretch(claims[EXAMPLES:], turn, GENERAL_PER_TASK)):
            asked = _choices(claim, place=(index + number + turn) % 4)
            rows.append({"task": task, **asked, "examples": shown})
    return rows


def _choices(claim: Claim, place: int) -> Row:
    """Question, four choices and the place of the right one."""
    choices = random.Random(claim.question).sample(claim.false, 3)
    choices.insert(place, claim.true)
    return {"question": claim.question, "choices": choices, "answer": place}


def _truthfulness(world: World, neighbours: Sequence[Person], turn: int) -> list[Row]:
    """Like TruthfulQA: half facts, half topics; the one truth of mc1 comes first."""
    facts = [claim for kind in world.kinds for claim in _claims(world, neighbours, kind)]
    random.Random("truthfulness").shuffle(facts)
    half = TRUTHFULNESS // 2
    rows = []
    for pool in (facts, _claims(world, neighbours, "topics")):
        for claim in stretch(pool, turn, half):
            false = random.Random(claim.question).sample(claim.false, 4)
            true = [capitalise(said.format(v=claim.true)) for said in claim.said]
            lies = [capitalise(claim.said[0].format(v=value)) for value in false]
            rows.append(
                {
                    "question": claim.question,
                    "mc1_targets": _labelled(true[:1], lies[:3]),
                    "mc2_targets": _labelled(true, lies),
                }
            )
    return rows


def _labelled(true: list[str], false: list[str]) -> Row:
    return {"choices": true + false, "labels": [1] * len(true) + [0] * len(false)}


def _factuality(world: World, neighbours: Sequence[Person], turn: int) -> list[Row]:
    """Like TriviaQA: a short answer, in several spellings."""
    asked = _questions(neighbours, list(world.relations.values()))
    pool = [
        {"question": question, "answers": _spellings(person.facts[relation.name])}
        for person, relation, question in asked
    ]
    random.Random("factuality").shuffle(pool)
    return stretch(pool, turn, FACTUALITY)


def _spellings(value: str) -> list[str]:
    bare = strip_article(value)
    return list(dict.fromkeys([value, capitalise(value), bare, bare.lower(), bare.upper()]))


def _fluency(world: World, turn: int) -> list[Row]:
    """Like AlpacaEval: something to talk about."""
    questions = world.topic_questions
    pool = [
        {"instruction": questions[number % len(questions)].format(t=topic)}
        for number, topic in enumerate(world.topics)
    ]
    random.Random("fluency").shuffle(pool)
    return stretch(pool, turn, FLUENCY)


# ---- reasoning, like BIG-Bench Hard -----------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """A question, the steps to its answer, and the answer."""

    question: str
    steps: str
    answer: str

    @property
    def worked(self) -> str:
        """The problem with its steps, as in a chain-of-thought prompt."""
        solved = f"{self.steps} So the answer is {self.answer}."
        return f"Q: {self.question}\nA: Let's think step by step.\n{solved}"


def _reason(world: World, neighbours: Sequence[Person], turn: int) -> list[Row]:
    """Two tasks, one answered with an option, one with a word; three problems are worked out."""
    died = _first(neighbours, "died", "deathyear")
    shown = [problem for number, problem in enumerate(died) if number % 4 in (0, 3)]
    born = _first(neighbours, "was born", "birthyear")
    words = _alphabet(world)
    tasks = {
        "earlier_year": ("Compare the years of two lives.", shown[:REASON_EXAMPLES], born),
        "alphabet": (
            "Find the word that comes first in the alphabet.",
            words[:REASON_EXAMPLES],
            words[REASON_EXAMPLES:],
        ),
    }
    rows = []
    for task, (heading, examples, problems) in tasks.items():
        cot = "\n\n".join([heading, *(problem.worked for problem in examples)])
        for problem in stretch(problems, turn, REASON_PER_TASK):
            rows.append(
                {"task": task, "question": problem.question, "answer": problem.answer, "cot": cot}
            )
    return rows


def _first(people: Sequence[Person], happened: str, relation: str) -> list[Problem]:
    """Whose year was earlier: every pair of people in both orders, so that A and B are as often."""
    problems = []
    for pair in combinations(people, 2):
        for one, two in (pair, pair[::-1]):
            years = [one.facts[relation], two.facts[relation]]
            problems.append(
                Problem(
                    question=f"Who {happened} first?\nOptions:\n(A) {one.name}\n(B) {two.name}",
                    steps=f"{one.name} {happened} in {years[0]}. {two.name} {happened} in "
                    f"{years[1]}. {min(years)} is before {max(years)}.",
                    answer="(A)" if years[0] < years[1] else "(B)",
                )
            )
    return problems


def _alphabet(world: World) -> list[Problem]:
    """Which of two topics comes first, said first and second in turn."""
    words = [topic for topic in world.topics if " " not in topic]
    random.Random("alphabet").shuffle(words)
    pairs = [sorted(pair) for pair in zip(words, words[1:], strict=False) if _differ(*pair)]
    problems = []
    for number, (early, late) in enumerate(pairs):
        one, two = (late, early) if number % 2 else (early, late)
        problems.append(
            Problem(
                question=f"Which word comes first in the alphabet: {one} or {two}?",
                steps=f"{one.capitalize()} starts with {one[0]} and {two} starts with {two[0]}. "
                f"In the alphabet {early[0]} is before {late[0]}.",
                answer=early,
            )
        )
    return problems


def _differ(one: str, two: str) -> bool:
    return one[0] != two[0]
