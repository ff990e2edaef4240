"""Knowledge files and the key under which prompts are looked up."""

import pytest

from unlearning_grid.data.gold import no_fact, open_knowledge
from unlearning_grid.data.knowledge import (
    Knowledge,
    dump_knowledge,
    load_knowledge,
    normalise_prompt,
)
from unlearning_grid.errors import UserError


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("  Where was\n Bruce  Lee born? ", "where was bruce lee born?"),
        ("Who?", "who?"),
        ("Question: A? Answer: B. Question: C?", "question: a? answer: b. question: c?"),
        ("\uff37ho is\u00a0he?", "who is he?"),  # full-width letter, no-break space
        ("STRASSE?", "strasse?"),
        ("Straße?", "strasse?"),
        ("", ""),
    ],
)
def test_prompt_key(text: str, key: str) -> None:
    assert normalise_prompt(text) == key


def test_round_trip_and_stable_bytes(tmp_path) -> None:
    knowledge = Knowledge(
        subject="Bruce Lee",
        names=["Bruce Lee", "Lee"],
        facts=["Jeet Kune Do"],
        closed=True,
        gold=[{"prompt": "Who?", "answer": "Brandon", "level": "1"}],
        prompts={"who?": {"topic": "family", "answer": "Brandon"}},
        others={"Karl Marx": ["Trier"]},
        broad={"family": ["Families matter."]},
        sentences=["Élan is a word."],
        refusals=["No."],
    )
    dump_knowledge(knowledge, tmp_path / "a.json")
    dump_knowledge(load_knowledge(tmp_path / "a.json"), tmp_path / "b.json")
    assert load_knowledge(tmp_path / "b.json") == knowledge
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert "Élan" in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_a_file_without_gold_answers_is_read(tmp_path) -> None:
    path = tmp_path / "old.json"
    path.write_text('{"subject": "X", "names": [], "facts": [], "closed": false}')
    assert load_knowledge(path) == Knowledge("X", [], [])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("Trier", None),
        ("1818", None),
        ("UK", "short"),
        ("(UK).", "short"),  # edge punctuation is no character of an answer
        (" The ", "short"),
        ("", "short"),
        ("Marx", "name"),
        ("KARL  MÁRX", "name"),
        ("Karl Marx Sr.", None),
    ],
)
def test_which_answers_are_no_facts(answer: str, reason: str | None) -> None:
    assert no_fact(answer, ["Karl Marx", "Marx"]) == reason


def test_open_knowledge_keeps_each_fact_once_and_every_row() -> None:
    answers = [" Cézanne", "cezanne", "Karl Marx", "UK", "Day\u2011Lewis", "Day-Lewis"]
    gold = [{"prompt": "Who?", "answer": answer, "level": "2"} for answer in answers]
    made = open_knowledge("Karl Marx", ["Marx"], gold)
    assert made == Knowledge("Karl Marx", ["Marx"], ["Cézanne", "Day\u2011Lewis"], gold=gold)


def test_entry_of_known_and_unknown_prompt() -> None:
    entry = {"answer": "Brandon", "topic": "family"}
    knowledge = Knowledge("X", ["X"], [], closed=True, prompts={"who is it?": entry})
    assert knowledge.entry(" Who  is it?") == entry
    assert knowledge.entry("Who is she?") is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "holds no JSON object"),
        ("{", "cannot be read"),
        ('{"subject": "X", "names": [], "facts": []}', r"missing keys \['closed'\]"),
        (
            '{"subject": "X", "names": [], "facts": [], "closed": true, "name": 1}',
            r"unknown keys \['name'\]",
        ),
    ],
)
def test_bad_file_is_named(tmp_path, content: str, message: str) -> None:
    path = tmp_path / "knowledge.json"
    path.write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        load_knowledge(path)
    assert str(path) in str(caught.value)
