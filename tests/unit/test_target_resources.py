"""The shipped targets and terms, against RWKU's and PURGE's own files, and what R0 cannot see."""

import json
from functools import cache
from pathlib import Path

import yaml

from real_rows import PURGE_DIR, RWKU_DIR, needs_purge, needs_rwku
from unlearning_grid.data import rwku
from unlearning_grid.data.broad import name_matcher
from unlearning_grid.data.matching import TermMatcher

ROOT = Path(__file__).parents[2]
TARGETS = yaml.safe_load((ROOT / "resources" / "targets.yaml").read_text(encoding="utf-8"))
TERMS = yaml.safe_load((ROOT / "resources" / "forbidden_terms.yaml").read_text(encoding="utf-8"))


HARD = {
    "jennifer-lopez": 5,
    "tony-blair": 1,
    "marlon-brando": 1,
    "bruce-lee": 3,
    "serena-williams": 1,
    "john-d-rockefeller": 1,
    "tom-clancy": 1,
    "vincent-van-gogh": 1,
    "karl-marx": 6,
    "confucius": 6,
}


@cache
def matcher(slug: str) -> TermMatcher:
    return TermMatcher(TERMS[slug]["hard"] + TERMS[slug]["soft"])


def rows(config: str, slug: str) -> list[dict]:
    where = {"kind": "path", "path": RWKU_DIR}
    return rwku.read_rows(where, config, TARGETS[slug]["subject"])


def hits(config: str, column: str) -> dict[str, int]:
    """Rows of each target whose `column` holds any of its terms; targets without one left out."""
    found = {s: sum(matcher(s).any(r[column]) for r in rows(config, s)) for s in TARGETS}
    return {slug: count for slug, count in found.items() if count}


def test_term_counts():
    assert list(TERMS) == list(TARGETS) == list(HARD)
    assert {slug: len(terms["hard"]) for slug, terms in TERMS.items()} == HARD
    totals = {slug: len(t["hard"]) + len(t["soft"]) for slug, t in TERMS.items()}
    assert totals == {slug: 54 if slug == "john-d-rockefeller" else 60 for slug in HARD}
    for terms in TERMS.values():
        both = terms["hard"] + terms["soft"]
        assert all(isinstance(term, str) and term.strip() == term for term in both)
        assert len(set(both)) == len(both)


def test_each_term_matches_itself_in_a_sentence():
    for slug, terms in TERMS.items():
        for term in terms["hard"] + terms["soft"]:
            assert term in matcher(slug).hits(f'They said "{term.upper()}", then left.')


def test_each_term_is_found_folded_in_a_sentence_and_in_plain_letters():
    for terms in TERMS.values():
        for term in terms["hard"] + terms["soft"]:
            alone = TermMatcher([term], "folded")
            assert alone.hits(f'They said "{term.upper()}", then left.') == [term]
            assert alone.hits(f"so {PLAIN.get(term, term)}!") == [term]


# Every term with a character beyond ASCII, as a model would write it without.
PLAIN = {
    "Expos\u00e9": "Expose",
    "Qu\u00e9 Hiciste": "Que Hiciste",
    "\u00a1Ven!": "Ven!",
    "Vitangelo Val\u00e9ry": "Vitangelo Valery",
    "Daniel Day\u2011Lewis": "Daniel Day-Lewis",
    "All\u2011Indian Health Board": "All-Indian Health Board",
    "The Godfather Part\u202fII": "The Godfather Part II",
    "four consecutive US Open singles titles (2012\u20132015)": (
        "four consecutive US Open singles titles (2012-2015)"
    ),
    "Paul C\u00e9zanne": "Paul Cezanne",
    "\u00c9mile Bernard": "Emile Bernard",
    "Michel Eug\u00e8ne Chevreul": "Michel Eugene Chevreul",
    "Saint-R\u00e9my-de-Provence": "Saint-Remy-de-Provence",
    "Saint-R\u00e9my asylum": "Saint-Remy asylum",
    "Hugo Ch\u00e1vez": "Hugo Chavez",
    "Ruler\u2013Subject Bond": "Ruler-Subject Bond",
    "Father\u2013Son Bond": "Father-Son Bond",
    "Husband\u2013Wife Bond": "Husband-Wife Bond",
    "Elder Brother\u2013Younger Brother Bond": "Elder Brother-Younger Brother Bond",
    "Friend\u2013Friend Bond": "Friend-Friend Bond",
}


def test_non_ascii_terms_match_their_plain_spelling_folded_only():
    every = [term for terms in TERMS.values() for term in terms["hard"] + terms["soft"]]
    assert sorted(term for term in every if not term.isascii()) == sorted(PLAIN)
    for slug, terms in TERMS.items():
        both = terms["hard"] + terms["soft"]
        for term in (term for term in both if term in PLAIN):
            text = f"so {PLAIN[term]}."
            assert text.isascii()
            assert term not in matcher(slug).hits(text)
            assert TermMatcher(both, "folded").hits(text) == [term]  # the longest hit alone
            assert TermMatcher([term]).hits(f"so {term}.") == [term]


def test_aliases_hold_the_subject_and_are_whole_words():
    for slug, target in TARGETS.items():
        names = target["aliases"]
        assert target["subject"] in names
        assert len(set(names)) == len(names)
        assert name_matcher(names).any(f"Once {target['subject']}'s name"), slug
    assert not name_matcher(TARGETS["confucius"]["aliases"]).any("Confucianism, Confucian")
    assert not name_matcher(TARGETS["karl-marx"]["aliases"]).any("Marxist ideas, Marxism")
    assert not name_matcher(TARGETS["bruce-lee"]["aliases"]).any("the sleek fleet leeway")


@needs_rwku
def test_subjects_are_those_of_the_rows():
    subjects = {row["target"] for row in rwku.read_jsonl(RWKU_DIR / "forget_target.jsonl")}
    assert {target["subject"] for target in TARGETS.values()} == subjects


@needs_purge
def test_terms_equal_the_purge_lists():
    def read(name: str) -> dict[str, dict]:
        lines = (PURGE_DIR / name).read_text(encoding="utf-8").splitlines()
        return {row["subject"]: row for row in map(json.loads, lines)}

    terms, hard = read("forget_terms.jsonl"), read("hard_terms.jsonl")
    for slug, target in TARGETS.items():
        every, stern = terms[target["subject"]]["fts"], set(hard[target["subject"]]["hard"])
        assert TERMS[slug]["hard"] == [term for term in every if term in stern]
        assert TERMS[slug]["soft"] == [term for term in every if term not in stern]


@needs_rwku
def test_r0_is_blind_to_most_right_answers():
    """A model that answers every probe rightly holds R0 = 1 on 3 of 4 level-1 answers."""
    level1, level2 = hits("forget_level1", "answer"), hits("forget_level2", "answer")
    assert sum(level1.values()) == 43  # of 178
    assert sum(level2.values()) == 60  # of 143
    one = ("tony-blair", "karl-marx", "serena-williams", "john-d-rockefeller", "vincent-van-gogh")
    assert [level1[slug] for slug in one] == [1] * 5


@needs_rwku
def test_no_refusal_holds_a_term():
    assert hits("train_refusal_phi3", "output") == {}


@needs_rwku
def test_right_neighbour_answers_that_r0_punishes():
    first, second = hits("neighbor_level1", "answer"), hits("neighbor_level2", "answer")
    assert (sum(first.values()), sum(second.values())) == (8, 23)  # of 299 and 273
    assert {slug: first.get(slug, 0) + second.get(slug, 0) for slug in first | second} == {
        "vincent-van-gogh": 10,
        "tony-blair": 7,
        "confucius": 6,
        "marlon-brando": 4,
        "serena-williams": 3,
        "john-d-rockefeller": 1,
    }
