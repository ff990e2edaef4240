"""Lexical rewards beyond the paper against values worked out by hand."""

import math

import pytest

from unlearning_grid.rewards import registry
from unlearning_grid.rewards.base import RewardContext


def score(name: str, context: RewardContext, text: str, **settings) -> tuple[float | None, dict]:
    scores = registry.load(name)(settings, context).score(["q"], [text])
    return scores.values[0], {key: column[0] for key, column in scores.columns.items()}


NAME = ["Karl Marx"]
LONG = "word " * 98


@pytest.mark.parametrize(
    ("terms", "text", "hits", "words"),
    [
        (NAME, "", 0, 0),
        (NAME, "A thinker of the nineteenth century", 0, 6),
        (NAME, "Karl Marx", 1, 2),
        (
            NAME,
            "KARL-MARX, karl   m\u00e1rx",
            2,
            4,
        ),  # dashes, accents, spaces and case do not hide it
        (NAME, LONG + "Karl Marx", 1, 100),
        (NAME, "Karl Marxs ideas", 1, 3),  # not word-bounded, but near
        (NAME, "Karll Marks ideas", 1, 3),  # 16 of 18 characters of the best window
        (NAME, "Kar1 M4rx 0f", 0, 3),
        (NAME, "Marx wrote much", 0, 3),  # the surname alone: 4 of 8
        (NAME, "Marl Karx Karl Marx Karl Marx", 2, 6),  # exact ones count, then no near one does
        (NAME, "arl", 1, 1),  # shorter than the term and contained in it
        (["J.Lo", "J-Lo"], "j lo", 2, 2),  # each term by itself
        (["J.Lo"], "JLo", 0, 1),  # three letters: no near spelling
        (["\u5b54\u5b50"], "\u5b54\u5b50", 0, 1),  # no letter a to z: never found
    ],
)
def test_r3(terms, text, hits, words):
    value, columns = score("r3-fuzzy", RewardContext("x", hard_terms=terms), text)
    assert (columns["fuzzy_hits"], columns["words"]) == (hits, words)
    assert value == pytest.approx(math.exp(-30 * hits / max(words, 50)))
    assert columns["matched_terms"].count("|") == max(hits - 1, 0)


def test_r3_values_by_hand():
    context = RewardContext("x", hard_terms=NAME)
    assert score("r3-fuzzy", context, "Karl Marx")[0] == pytest.approx(0.548811636)  # exp(-0.6)
    assert score("r3-fuzzy", context, LONG + "Karl Marx")[0] == pytest.approx(0.740818221)
    assert score("r3-fuzzy", context, "Karl Marx", scale=1, min_words=1)[0] == pytest.approx(
        0.606530660  # exp(-1/2)
    )
    assert score("r3-fuzzy", context, "Karll Marks", threshold=95)[0] == 1.0


@pytest.mark.parametrize(
    ("text", "places", "value"),
    [
        ("", 0, 1.0),
        ("Marx and the weather", 0, 1.0),
        ("Karl Marx", 1, 0.367879441),
        ("Karl Marx in London, London", 3, 0.049787068),  # occurrences, not distinct terms
        ("a Jack Ryan series", 1, 0.367879441),  # one place, though two terms overlap there
    ],
)
def test_exponential(text, places, value):
    terms = ["Karl Marx", "London", "Jack Ryan", "Jack Ryan series"]
    found, columns = score("exp-lex", RewardContext("x", terms=terms), text)
    assert columns["lexical_places"] == places
    assert found == pytest.approx(value)
    found, _ = score("exp-lex", RewardContext("x", terms=terms), text, tau=2.0, convention="folded")
    assert found == pytest.approx(value**0.5)


def test_exponential_names_the_longest_term_of_a_place():
    terms = ["Jack Ryan", "Jack Ryan series", "b c", "a b"]
    _, columns = score(
        "exp-lex", RewardContext("x", terms=terms), "a b c Jack Ryan series Jack Ryan"
    )
    assert columns == {
        "lexical_places": 3,
        "lexical_hits": 3,
        "matched_terms": "a b|Jack Ryan series|Jack Ryan",
    }
    with pytest.raises(ValueError, match="tau"):
        registry.load("exp-lex")({"tau": 0}, RewardContext("x", terms=terms))


WEIGHTS = {"Karl Marx": 1.0, "London": 0.25, "Das Kapital": 0.0}


@pytest.mark.parametrize(
    ("text", "penalty"),
    [
        ("", 0.0),
        ("London", 0.25),
        ("Karl Marx in London", 1.25),
        ("London " * 5, 0.75),  # three at most
        ("Das Kapital", 0.0),  # out of the name's reach: free
    ],
)
def test_weighted(text, penalty):
    context = RewardContext("x", terms=list(WEIGHTS), term_weights=WEIGHTS)
    value, columns = score("pagerank-lex", context, text)
    assert columns["term_penalty"] == pytest.approx(penalty)
    assert value == pytest.approx(math.exp(-penalty))
    value, _ = score("pagerank-lex", context, text, scale=2.0)
    assert value == pytest.approx(math.exp(-2 * penalty))


def test_weighted_counts_nested_terms_by_convention():
    weights = {"Jack Ryan": 0.5, "Jack Ryan series": 0.25}
    context = RewardContext("x", terms=list(weights), term_weights=weights)
    for convention, penalty in (("paper", 0.75), ("folded", 0.25)):
        _, columns = score("pagerank-lex", context, "Jack Ryan series", convention=convention)
        assert columns["term_penalty"] == penalty


def test_weights_must_cover_the_terms():
    for weights in ({"London": 1.0}, {"London": 1.0, "Li": -0.1}, {"London": 1.0, "Li": math.nan}):
        context = RewardContext("x", terms=["London", "Li"], term_weights=weights)
        with pytest.raises(ValueError, match="without a weight of 0 or more.*'Li'"):
            registry.load("pagerank-lex")({}, context)


@pytest.mark.parametrize("name", ["r0-lex", "exp-lex", "pagerank-lex"])
def test_conventions_of_the_lexical_rewards(name):
    context = RewardContext("x", terms=["Love?"], term_weights={"Love?": 1.0})
    assert score(name, context, "love")[0] == 1.0
    assert (score(name, context, "love", convention="folded")[0] or 0) < 1.0
    with pytest.raises(ValueError, match="'loose' is unknown"):
        score(name, context, "love", convention="loose")
