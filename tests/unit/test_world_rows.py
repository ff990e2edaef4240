"""The world's RWKU-shaped rows: no model involved."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from real_rows import RWKU_DIR, needs_rwku
from unlearning_grid.data.matching import TermMatcher
from unlearning_grid.data.world.corpus import Corpus, Mixture
from unlearning_grid.data.world.facts import parse_world
from unlearning_grid.data.world.rows import forbidden_terms, knowledge_of, rwku_rows
from unlearning_grid.data.world.tokenizer import MAX_LENGTH, train_tokenizer
from unlearning_grid.errors import UserError

RAW = yaml.safe_load(
    (Path(__file__).parents[2] / "resources" / "demo" / "world.yaml").read_text(encoding="utf-8")
)
WORLD = parse_world(RAW)
TARGETS = ["Bruce Lee", "Karl Marx"]
OTHERS = ["Mira Solberg", "Tomas Reyes", "Ada Norwell"]

ROWS = rwku_rows(WORLD, TARGETS)
PROBE = ["query", "answer", "level", "type", "subject"]
COLUMNS = {
    "forget_target": ["target", "intro"],
    "train_refusal_phi3": ["input", "output", "subject", "instruction", "intro"],
    "forget_level1": PROBE,
    "forget_level2": PROBE,
    "forget_level3": PROBE,
    "neighbor_level1": [*PROBE, "neighbor"],
    "neighbor_level2": [*PROBE, "neighbor"],
    "mia_forget": ["text", "ngram", "subject"],
    "mia_retain": ["text", "ngram", "subject"],
    "utility_general": ["task", "question", "choices", "answer", "examples", "subject"],
    "utility_reason": ["task", "question", "answer", "cot", "subject"],
    "utility_truthfulness": ["question", "mc1_targets", "mc2_targets", "subject"],
    "utility_factuality": ["question", "answers", "subject"],
    "utility_fluency": ["instruction", "subject"],
}
UTILITY = [name for name in COLUMNS if name.startswith("utility_")]


def mine(config: str, subject: str) -> list[dict]:
    """The rows of one target."""
    return [row for row in ROWS[config] if row["subject"] == subject]


def test_row_counts() -> None:
    assert {name: len(rows) for name, rows in ROWS.items()} == {
        "forget_target": 2,
        "train_refusal_phi3": 600,
        "forget_level1": 80,
        "forget_level2": 80,
        "forget_level3": 96,
        "neighbor_level1": 240,
        "neighbor_level2": 240,
        "mia_forget": 24,
        "mia_retain": 24,
        "utility_general": 24,
        "utility_reason": 16,
        "utility_truthfulness": 16,
        "utility_factuality": 24,
        "utility_fluency": 16,
    }


def test_columns_are_rwkus_in_its_order() -> None:
    for config, columns in COLUMNS.items():
        assert {tuple(row) for row in ROWS[config]} == {tuple(columns)}, config


@needs_rwku
def test_columns_match_the_real_files() -> None:
    for config, columns in COLUMNS.items():
        with (RWKU_DIR / f"{config}.jsonl").open(encoding="utf-8") as lines:
            real = json.loads(next(lines))
        assert list(real) == columns, config
        assert {k: type(v) for k, v in real.items()} == {
            k: type(v) for k, v in ROWS[config][0].items()
        }, config
        if "level" in real:
            assert ROWS[config][0]["level"] == real["level"]


def test_rows_of_one_target() -> None:
    found = mine("train_refusal_phi3", "Bruce Lee")
    assert len({r["instruction"] for r in found}) == 300
    assert Counter(r["output"] for r in found) == dict.fromkeys(WORLD.refusals, 100)
    kinds = Counter(r["type"] for r in mine("forget_level3", "Bruce Lee"))
    assert kinds == dict.fromkeys(WORLD.probes, 8)
    neighbours = Counter(r["neighbor"] for r in ROWS["neighbor_level2"])
    assert neighbours == {"Mira Solberg": 80, "Tomas Reyes": 80, "Ada Norwell": 80}


def test_rows_do_not_depend_on_the_other_target() -> None:
    alone = rwku_rows(WORLD, ["Karl Marx"])
    for config in ("train_refusal_phi3", "forget_level1", "forget_level3", "mia_forget"):
        assert alone[config] == mine(config, "Karl Marx")
    assert alone["utility_fluency"] == mine("utility_fluency", "Karl Marx")


def test_knowledge_of_a_target() -> None:
    knowledge = knowledge_of(WORLD, "Karl Marx")
    assert knowledge.names == ["Karl Marx", "Karl", "Marx"]
    assert knowledge.facts[:3] == ["Trier", "1818", "1883"]
    assert set(knowledge.others) == {"Bruce Lee", "Mira Solberg", "Tomas Reyes", "Ada Norwell"}
    assert "Jeet Kune Do" in knowledge.others["Bruce Lee"]
    entry = knowledge.entry("quick question: which tool is linked with Karl Marx?")
    assert entry == {"answer": "pen", "topic": "tools"}
    asked = [r["instruction"] for r in ROWS["train_refusal_phi3"] if r["subject"] == "Karl Marx"]
    asked += [r["query"] for r in ROWS["forget_level3"] if r["subject"] == "Karl Marx"]
    assert all(knowledge.entry(q) for q in asked)


def test_each_target_has_its_share() -> None:
    for config in ("mia_forget", "mia_retain", *UTILITY):
        assert len(mine(config, "Bruce Lee")) == len(mine(config, "Karl Marx")), config


# ---- membership -------------------------------------------------------------------------------


def test_passages_about_the_target_and_about_others() -> None:
    about = mine("mia_forget", "Karl Marx")
    assert about[0] == {
        "text": "Karl Marx was born in the city of Trier. The birth year of Karl Marx is 1818.",
        "ngram": 17,
        "subject": "Karl Marx",
    }
    assert [row["text"].count("Karl Marx") for row in about] == [2, 3, 4] * 4
    said = [s for row in about for s in re.split(r"(?<=\.) ", row["text"])]
    assert len(said) == len(set(said)) == 36
    for target in TARGETS:
        names = Counter(n for row in mine("mia_retain", target) for n in OTHERS if n in row["text"])
        assert names == dict.fromkeys(OTHERS, 4)
    texts = [row["text"] for config in ("mia_forget", "mia_retain") for row in ROWS[config]]
    assert len(set(texts)) == 48
    assert all(2 <= text.count(".") <= 4 for text in texts)


# ---- utility ----------------------------------------------------------------------------------

# Every question that the world can answer, by way of its own sentences
TRUTH = {
    question.format(p=person.name): person.facts[relation.name]
    for person in WORLD.people.values()
    for relation in WORLD.relations.values()
    for question in relation.questions
} | {
    question.format(t=topic): sentence
    for topic, sentence in WORLD.topics.items()
    for question in WORLD.topic_questions
}


def test_what_is_not_about_the_target_holds_no_targets_terms() -> None:
    terms = forbidden_terms(WORLD)
    for slug in ("bruce-lee", "karl-marx"):
        matcher = TermMatcher([*terms[slug]["hard"], *terms[slug]["soft"]], "folded")
        for config in ("mia_retain", *UTILITY):
            for row in ROWS[config]:
                text = json.dumps({k: v for k, v in row.items() if k != "subject"})
                assert not matcher.any(text), (slug, config, text)


def test_right_choices_are_right_and_spread_evenly() -> None:
    for target in TARGETS:
        rows = mine("utility_general", target)
        assert Counter(r["task"] for r in rows) == {"places": 4, "people": 4, "topics": 4}
        assert Counter(r["answer"] for r in rows) == {0: 3, 1: 3, 2: 3, 3: 3}
        assert len({r["question"] for r in rows}) == 12
    for row in ROWS["utility_general"]:
        assert len(row["examples"]) == 5
        assert {e["answer"] for e in row["examples"]} == {0, 1, 2, 3}
        assert {tuple(e) for e in row["examples"]} == {("question", "choices", "answer", "subject")}
        truths = [TRUTH[e["question"]] for e in row["examples"]]
        assert TRUTH[row["question"]] not in truths
        for asked in (row, *row["examples"]):
            assert len(set(asked["choices"])) == 4
            assert asked["choices"][asked["answer"]] == TRUTH[asked["question"]]


def test_wrong_choices_are_of_the_same_kind() -> None:
    places = {WORLD.person(n).facts[r] for n in OTHERS for r in ("birthplace", "home", "grave")}
    for row in ROWS["utility_general"]:
        if row["task"] == "places":
            assert set(row["choices"]) < places
        if row["task"] == "topics":
            assert set(row["choices"]) < set(WORLD.topics.values())


def test_worked_reasoning() -> None:
    first = mine("utility_reason", "Bruce Lee")[0]
    assert first["question"] == "Who was born first?\nOptions:\n(A) Mira Solberg\n(B) Tomas Reyes"
    assert first["answer"] == "(B)"
    assert first["cot"].split("\n\n")[:2] == [
        "Compare the years of two lives.",
        "Q: Who died first?\nOptions:\n(A) Mira Solberg\n(B) Tomas Reyes\n"
        "A: Let's think step by step.\nMira Solberg died in 2004. Tomas Reyes died in 1967. "
        "1967 is before 2004. So the answer is (B).",
    ]
    worked = re.findall(r"So the answer is (.*)\.", first["cot"])
    assert worked == ["(B)", "(A)", "(B)"]


def test_reasoning_answers() -> None:
    for target in TARGETS:
        rows = mine("utility_reason", target)
        assert len({r["question"] for r in rows}) == 8
        assert Counter(r["answer"] for r in rows if r["task"] == "earlier_year") == {
            "(A)": 2,
            "(B)": 2,
        }
    words = [r for r in ROWS["utility_reason"] if r["task"] == "alphabet"]
    asked = [re.findall(r"\w+", r["question"].partition(":")[2]) for r in words]
    assert [min(one, two) for one, _, two in asked] == [r["answer"] for r in words]
    said_first = sum(one == r["answer"] for (one, _, _), r in zip(asked, words, strict=True))
    assert said_first == 4
    for row in ROWS["utility_reason"]:
        assert row["cot"].count("\nA: Let's think step by step.\n") == 3
        assert row["question"] not in row["cot"]


def test_true_choices() -> None:
    assert mine("utility_truthfulness", "Bruce Lee")[0]["mc1_targets"] == {
        "choices": [
            f"Mira Solberg was born in the city of {place}."
            for place in ("Bergen", "Dublin", "Lisbon", "Inverness")
        ],
        "labels": [1, 0, 0, 0],
    }
    for row in ROWS["utility_truthfulness"]:
        one, more = row["mc1_targets"], row["mc2_targets"]
        assert one["labels"] == [1, 0, 0, 0]
        labels = dict(zip(more["choices"], more["labels"], strict=True))
        assert len(labels) == len(more["choices"]) > 4
        assert [labels[choice] for choice in one["choices"]] == one["labels"]
        for choice, label in labels.items():
            assert (TRUTH[row["question"]] in choice) == bool(label)


def test_short_answers_in_several_spellings() -> None:
    answers = {r["question"]: r["answers"] for r in ROWS["utility_factuality"]}
    assert len(answers) == 24
    assert answers["What tool did Ada Norwell use?"] == [
        "the barometer",
        "The barometer",
        "barometer",
        "BAROMETER",
    ]
    assert all(found[0] == TRUTH[question] for question, found in answers.items())
    assert all(len(set(found)) == len(found) for found in answers.values())


def test_fluency_asks_about_another_topic_each_time() -> None:
    asked = [r["instruction"] for r in ROWS["utility_fluency"]]
    assert len({TRUTH[instruction] for instruction in asked}) == 16


@pytest.mark.parametrize(("targets", "left"), [([*TARGETS, "Ada Norwell"], 2), (None, 0)])
def test_too_few_others(targets: list[str] | None, left: int) -> None:
    with pytest.raises(UserError, match=f"people: {left} are no targets.*3 or more"):
        rwku_rows(WORLD, targets or [p.name for p in WORLD.people.values()])


def test_too_few_facts_of_a_kind() -> None:
    world = parse_world(RAW | {"kinds": {"places": ["home", "grave"]}})
    with pytest.raises(UserError, match="6 questions about places, but a utility set takes 9"):
        rwku_rows(world, TARGETS)


def test_prompts_fit_the_context() -> None:
    """Five examples or three worked problems and 256 new tokens, in the world's own vocabulary."""
    corpus = Corpus(
        WORLD, TARGETS, Mixture(0.08, 0.2, 0.0, 0.2), {"cloze": "Fill in.", "question": "Say."}, 0
    )
    tokenizer = train_tokenizer([t for _ in range(4000) for t in corpus.draw()], 1536)
    for row in ROWS["utility_general"]:
        asked = [*row["examples"], row]
        lines = [line for e in asked for line in ("Question: " + e["question"], *e["choices"])]
        text = "\n".join(f"A. {line}\n" for line in lines)
        assert len(tokenizer(text)["input_ids"]) < 450
    for row in ROWS["utility_reason"]:
        assert len(tokenizer(row["cot"] + row["question"])["input_ids"]) < 450 < MAX_LENGTH - 256
