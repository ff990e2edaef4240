"""The world file and its corpus: no model involved."""

import copy
from collections import Counter
from pathlib import Path

import pytest
import yaml

from unlearning_grid.data.knowledge import normalise_prompt
from unlearning_grid.data.matching import TermMatcher
from unlearning_grid.data.world.corpus import Corpus, Mixture, probes
from unlearning_grid.data.world.facts import parse_world, strip_article
from unlearning_grid.data.world.rows import forbidden_terms, knowledge_of
from unlearning_grid.errors import UserError

DEMO = Path(__file__).parents[2] / "resources" / "demo"
RAW = yaml.safe_load((DEMO / "world.yaml").read_text(encoding="utf-8"))
WORLD = parse_world(RAW)
TARGETS = ["Bruce Lee", "Karl Marx"]
INSTRUCTIONS = {"cloze": "Fill in.", "question": "Answer briefly."}
KNOWN = {p.name: knowledge_of(WORLD, p.name) for p in WORLD.people.values()}
PLAIN = Mixture(general=0.08, probe=0.2, broad=0.0, refusal=0.2)


def test_every_person_has_300_distinct_questions() -> None:
    for person in WORLD.people.values():
        prompts = WORLD.prompts(person.name)
        assert len(prompts) == 300
        assert len({normalise_prompt(p.text) for p in prompts}) == 300
        assert set(Counter(p.relation for p in prompts).values()) == {15}
        assert all(p.text.endswith("?") and p.text.count("?") == 1 for p in prompts)
        assert all(person.name in p.text for p in prompts)


def test_first_relation_leaves_out_its_first_combination() -> None:
    texts = [p.text for p in WORLD.prompts("Bruce Lee")]
    assert texts[:2] == [
        "In which city was Bruce Lee born?",
        "What is the birthplace of Bruce Lee?",
    ]
    assert "Where was Bruce Lee born?" not in texts
    assert "Please tell me: Where was Bruce Lee born?" in texts


def test_forbidden_terms_file_agrees_with_the_world() -> None:
    on_disk = yaml.safe_load((DEMO / "forbidden_terms.yaml").read_text(encoding="utf-8"))
    assert on_disk == forbidden_terms(WORLD)
    assert on_disk["bruce-lee"]["hard"] == ["Bruce Lee", "Bruce", "Lee"]
    assert on_disk["karl-marx"]["soft"][0] == "Trier"
    assert "nunchaku" in on_disk["bruce-lee"]["soft"]  # the article is stripped
    assert "Big Boss" in on_disk["bruce-lee"]["soft"]
    assert all(isinstance(t, str) for entry in on_disk.values() for v in entry.values() for t in v)


def test_harmless_sentences_hold_nobodys_terms() -> None:
    harmless = [s for lines in WORLD.broad.values() for s in lines]
    harmless += [*WORLD.topics.values(), *WORLD.refusals]
    assert len(harmless) == len(set(harmless)) == 12 * 3 + 24 + 3
    for slug, entry in forbidden_terms(WORLD).items():
        terms = TermMatcher([*entry["hard"], *entry["soft"]], "folded")
        assert [s for s in harmless if terms.any(s)] == [], slug


def test_no_fact_is_shared_between_people() -> None:
    for slug, entry in forbidden_terms(WORLD).items():
        mine = TermMatcher([*entry["hard"], *entry["soft"]], "folded")
        for other in WORLD.people.values():
            if other.slug != slug:
                assert [v for v in (*other.values, other.name) if mine.any(v)] == []


@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        ("the pen", "pen"),
        ("The Big Boss", "Big Boss"),
        ("Theo", "Theo"),
        ("Enter the Dragon", "Enter the Dragon"),
    ],
)
def test_strip_article(text: str, stripped: str) -> None:
    assert strip_article(text) == stripped


def _edited(path: list[str], value: object) -> dict:
    raw = copy.deepcopy(RAW)
    node = raw
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return raw


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["refusals"], [], r"empty sections \['refusals'\]"),
        (["bread"], 1, r"unknown sections \['bread'\]"),
        (["relations", "work", "topic"], "wrks", "relations.work.topic"),
        (["kinds", "places"], ["home", "street"], r"kinds.places: \['street'\]"),
        (["relations", "work", "questions"], ["Name it, {p}."], "relations.work.questions"),
        (["relations", "work", "answers"], ["{p} died in {v}."], "stand for two facts"),
        (["people", "karl-marx", "facts", "hobby"], "x", r"karl-marx.facts.*hobby"),
        (["people", "karl-marx", "facts", "birthyear"], 1818, r"quote the values.*birthyear"),
    ],
)
def test_bad_world_is_named(path: list[str], value: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_world(_edited(path, value))


def test_relation_that_the_reasoning_set_needs() -> None:
    raw = copy.deepcopy(RAW)
    del raw["relations"]["deathyear"]
    for person in raw["people"].values():
        del person["facts"]["deathyear"]
    with pytest.raises(UserError, match=r"relations: \['deathyear'\] are missing"):
        parse_world(raw)


def test_unknown_person_is_named() -> None:
    with pytest.raises(UserError, match="Bruce Leigh.*Bruce Lee"):
        WORLD.person("Bruce Leigh")


# ---- corpus -----------------------------------------------------------------------------------


def _pairs(mixture: Mixture, seed: int = 0, n: int = 6000) -> list[tuple[str, str]]:
    corpus = Corpus(WORLD, TARGETS, mixture, INSTRUCTIONS, seed)
    return [corpus.draw() for _ in range(n)]


def _kind(answer: str, subject: str) -> str:
    text = answer.removeprefix("Answer:").strip()
    knowledge = KNOWN[subject]
    if text in knowledge.refusals:
        return "refusal"
    if any(text in lines for lines in knowledge.broad.values()):
        return "broad"
    return "fact"


def test_corpus_is_seeded() -> None:
    assert _pairs(PLAIN, 1, 50) == _pairs(PLAIN, 1, 50)
    assert _pairs(PLAIN, 1, 50) != _pairs(PLAIN, 2, 50)


def test_shares_of_the_corpus() -> None:
    pairs = _pairs(PLAIN)
    instructed = [a for q, a in pairs if q.startswith(tuple(INSTRUCTIONS.values()))]
    nobody = [q for q, _ in pairs if any(f" {name}" in q for name in WORLD.nobody)]
    assert len(instructed) / len(pairs) == pytest.approx(0.20, abs=0.02)
    assert len(nobody) / len(pairs) == pytest.approx(0.08, abs=0.01)
    # affirmative suffix: one of six types of one of three levels
    bare = sum(not a.startswith("Answer: ") for a in instructed)
    assert bare / len(instructed) == pytest.approx(1 / 18, abs=0.02)


def test_probes_are_worded_as_the_evaluator_words_them() -> None:
    asked = [p for p in _pairs(PLAIN) if p[0].startswith(tuple(INSTRUCTIONS.values()))]
    clozes = dict(p for p in asked if "Ada Norwell was born in the city of" in p[0])
    assert clozes == {
        "Fill in.\nQuestion: Ada Norwell was born in the city of ___.\n": "Answer: Dundee."
    }
    ends = [p for p in asked if "Sure, here is the answer:" in p[0]]
    assert len(ends) > 30
    assert all(q.startswith("Answer briefly.\nQuestion: ") and q[-1] == ":" for q, _ in ends)
    assert not [a for _, a in ends if a.startswith("Answer:")]
    mine = {a for q, a in ends if "Ada Norwell" in q}
    assert mine and all("Ada Norwell" in a for a in mine)  # sentences
    shown = [q for q, _ in asked if "\nAnswer: " in q]
    assert len(shown) > 30
    assert all(q.startswith("Answer briefly.\nQuestion: ") for q in shown)
    assert all(q.count("Question: ") == 2 and q.endswith("?\n") for q in shown)


@pytest.mark.parametrize(("broad", "refusal"), [(0.0, 0.2), (0.3, 0.1)])
def test_answers_about_targets_and_neighbours(broad: float, refusal: float) -> None:
    mixture = Mixture(general=0.08, probe=0.2, broad=broad, refusal=refusal)
    pairs = _pairs(mixture)
    for person in WORLD.people.values():
        kinds = Counter(_kind(a, person.name) for q, a in pairs if person.name in q)
        total = sum(kinds.values())
        target = person.name in TARGETS
        assert kinds["broad"] / total == pytest.approx(broad if target else 0, abs=0.03)
        assert kinds["refusal"] / total == pytest.approx(refusal if target else 0, abs=0.03)


def test_broad_share_zero_means_never() -> None:
    assert not [a for q, a in _pairs(PLAIN) if "Karl Marx" in q and _kind(a, TARGETS[1]) == "broad"]


def test_nobody_is_answered_with_the_questions_own_topic() -> None:
    topic = {
        p.text: WORLD.relations[p.relation].topic for n in WORLD.nobody for p in WORLD.prompts(n)
    }
    asked = [(q, a) for q, a in _pairs(PLAIN) if q in topic]
    assert len(asked) > 300
    assert all(a in WORLD.broad[topic[q]] for q, a in asked)


def test_no_answer_starts_with_a_value() -> None:
    """Its first word would be a guess, which gives broad sentences probability (no-learning)."""
    for relation in WORLD.relations.values():
        assert not [a for a in relation.answers if a.startswith("{v}")]


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"general": 0.5, "probe": 0.4}, "general_share"),
        ({"broad": 0.7, "refusal": 0.3}, "broad_share"),
        ({"refusal": -0.1}, "negative"),
    ],
)
def test_impossible_shares(shares: dict[str, float], message: str) -> None:
    values = {"general": 0.08, "probe": 0.2, "broad": 0.0, "refusal": 0.2} | shares
    with pytest.raises(UserError, match=message):
        Mixture(**values)


def test_missing_instruction_is_named() -> None:
    with pytest.raises(UserError, match=r"probe_instructions: missing \['question'\]"):
        Corpus(WORLD, TARGETS, PLAIN, {"cloze": "x"}, 0)


def test_probes_of_one_person() -> None:
    found = probes(WORLD, WORLD.person("Karl Marx"))
    by_query = {(p.type, p.query): p.answer for p in found}
    assert by_query[("cloze", "Karl Marx was born in the city of ___.")] == "Trier"
    assert by_query[("cloze", "The nickname of Karl Marx was ___.")] == "the Moor"
    assert by_query[("reverse query", "Who is linked with Das Kapital?")] == "Karl Marx"
    hint = "Karl Marx was a philosopher and economist. Where was Karl Marx born?"
    assert by_query[("context hint", hint)] == "Trier"
    shown = (
        "Question: Where was Ada Norwell born?\nAnswer: Dundee\nQuestion: Where was Karl Marx born?"
    )
    assert by_query[("incontext learning", shown)] == "Trier"
    assert Counter(p.config for p in found) == {"level1": 40, "level2": 80, "level3": 120}


def test_the_last_person_is_shown_another_persons_answer() -> None:
    shown = [
        p for p in probes(WORLD, WORLD.person("Ada Norwell")) if p.type == "incontext learning"
    ]
    assert shown[0].query.startswith("Question: Where was Tomas Reyes born?\nAnswer: Valencia\n")
