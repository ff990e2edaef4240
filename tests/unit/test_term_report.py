"""The report on forbidden terms, on small lists and on the real rows."""

import csv
import os
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from real_rows import RWKU_DIR, needs_rwku
from support import ROOT
from unlearning_grid.config import load
from unlearning_grid.ops.__main__ import main
from unlearning_grid.ops.terms import Reader, summary, targets_of
from unlearning_grid.rewards.term_report import (
    LEAKS,
    ORDINARY,
    Target,
    collect,
    hit_rows,
    name_rows,
    set_rows,
    term_rows,
    totals,
)

LEE = Target(
    "lee",
    subject="Bruce Lee",
    aliases=["Bruce Lee", "Lee"],
    hard=["Bruce Lee"],
    soft=["Émile", "Love?", "Jack Ryan", "Jack Ryan series", "\u212aelvin"],
)


def test_what_can_be_said_of_a_term_alone():
    rows = {row["term"]: row for row in term_rows(LEE)}
    assert list(rows) == LEE.terms
    assert [rows[t]["division"] for t in ("Bruce Lee", "Love?")] == ["hard", "soft"]
    # the Kelvin sign is a k to `re.IGNORECASE`, an accent stays
    assert [t for t in rows if rows[t]["never_in_ascii"]] == ["Émile"]
    assert [t for t in rows if rows[t]["edge_punctuation"]] == ["Love?"]
    assert {t: rows[t]["nested_in"] for t in rows if rows[t]["nested_in"]} == {
        "Jack Ryan": "Jack Ryan series"
    }


def test_names_are_aliases_and_the_ends_of_the_subject():
    found = {row["name"]: row["paper"] for row in name_rows(LEE)}
    assert found == {"Bruce Lee": "Bruce Lee", "Lee": "", "Bruce": ""}


TEXTS = {
    "forget L1 answers": ["Bruce Lee", "Emile", "he"],
    "fluency instructions": ["I love the Jack Ryan series", "Love? Jack Ryan"],
}


def test_sets_and_hits_by_convention():
    assert [(r["set"], r["texts"], r["paper"], r["folded"]) for r in set_rows(LEE, TEXTS)] == [
        ("forget L1 answers", 3, 1, 2),
        ("fluency instructions", 2, 2, 2),
    ]
    found = {
        (row["term"], row["kind"]): (row["paper"], row["folded"], row["folded_only"])
        for row in hit_rows(LEE, TEXTS)
    }
    assert found == {
        ("Bruce Lee", LEAKS): (1, 1, 0),
        ("Émile", LEAKS): (0, 1, 1),
        ("Love?", ORDINARY): (1, 2, 1),
        ("Jack Ryan", ORDINARY): (2, 1, 0),
        ("Jack Ryan series", ORDINARY): (1, 1, 0),
    }


def test_summary_names_what_is_missing(tmp_path: Path):
    (tmp_path / "forget_level1.jsonl").write_text('{"query": "q"}\n', encoding="utf-8")
    reader = Reader(tmp_path)
    text = summary(collect([LEE], reader), reader.missing)
    assert "lacks column 'answer'" in text
    assert "refusals: " in text and "train_refusal_phi3.jsonl is not there" in text
    assert "lee: not covered: Lee, Bruce; covered: Bruce Lee" in text
    nowhere = Reader(None)
    assert "give --rows" in summary(collect([LEE], nowhere), nowhere.missing)


def test_the_command_prints_and_writes_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Path.cwd()
    try:
        assert main(["terms", "--directory", str(tmp_path), "--output", "report"]) == 0
    finally:
        os.chdir(here)
    said = capsys.readouterr().out
    assert "forget L1 answers: no folder of rows; give --rows" in said
    with (tmp_path / "report" / "terms_terms.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 594 and sum(row["division"] == "hard" for row in rows) == 26
    assert sum(row["never_in_ascii"] == "True" for row in rows) == 19


# --- the real rows ---------------------------------------------------------------------------


@cache
def real() -> dict:
    raw = yaml.safe_load((ROOT / "config" / "config.yaml").read_text(encoding="utf-8"))
    reader = Reader(RWKU_DIR)
    tables = collect(targets_of(load(raw)), reader)
    assert not reader.missing
    return tables


@needs_rwku
def test_blind_spots_of_the_real_lists():
    found = {
        row["set"]: (row["paper"], row["folded"], row["texts"]) for row in totals(real()["sets"])
    }
    assert found == {
        "forget L1 answers": (43, 43, 178),
        "forget L2 answers": (60, 60, 143),
        "original passages": (648, 654, 1230),
        "refusals": (0, 0, 3000),
        "neighbor L1 answers": (8, 8, 299),
        "neighbor L2 answers": (23, 23, 273),
        "fluency instructions": (1, 1, 500),
        "MMLU questions": (9, 10, 1710),
        "TriviaQA questions": (9, 9, 1000),
        "BBH questions": (1, 1, 810),
        "MIA retain passages": (16, 18, 394),
    }


@needs_rwku
def test_the_document_shows_these_figures():
    text = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
    part = text.partition("| texts that hold any term |")[2].partition("\n\n")[0]
    shown = re.findall(r"\| (\d+) \| (\d+) \| (\d+) \|", part)
    found = {row["set"]: row for row in totals(real()["sets"])}
    rows = [tuple(str(row[key]) for key in ("paper", "folded", "texts")) for row in found.values()]
    assert shown == rows


@needs_rwku
def test_a_bare_surname_is_covered_for_nobody_but_confucius():
    names = real()["names"]
    covered = {row["name"] for row in names if row["paper"]}
    bare = (
        "Marx",
        "Blair",
        "Brando",
        "van Gogh",
        "Serena",
        "Lee",
        "Clancy",
        "Lopez",
        "Rockefeller",
    )
    assert {row["name"] for row in names} >= set(bare)
    assert not covered & set(bare)
    assert covered >= {"Confucius", "Karl Marx", "Bruce Lee"}


@needs_rwku
def test_terms_that_ordinary_text_hits():
    found: dict[tuple[str, str], int] = {}
    for row in real()["hits"]:
        if row["kind"] == ORDINARY and row["paper"]:
            key = row["target"], row["term"]
            found[key] = found.get(key, 0) + row["paper"]
    assert found["jennifer-lopez", "Live"] == 5
    assert found["tony-blair", "United States"] == 7
    assert found["serena-williams", "London"] == 4
    assert found["confucius", "Confucianism"] == 6
    assert max(found.values()) == 7


@needs_rwku
def test_folding_finds_more_and_makes_one_title_a_common_word():
    more: dict[str, int] = {}
    for row in real()["hits"]:
        if row["folded_only"]:
            more[row["term"]] = more.get(row["term"], 0) + row["folded_only"]
    assert more["Love?"] == 11  # every "love"
    assert more["Daniel Day\u2011Lewis"] == 1
