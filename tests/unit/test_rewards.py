"""Rewards against values worked out by hand from the study's equations and table 5."""

import itertools
import threading
import time

import pytest

from unlearning_grid.errors import UserError
from unlearning_grid.judge.labels import RUBRIC
from unlearning_grid.rewards import registry
from unlearning_grid.rewards.antirefusal import AntiRefusalReward, antirefusal_reward
from unlearning_grid.rewards.base import NEEDS, RewardContext, Scores
from unlearning_grid.rewards.lexical import LexicalReward, TermMatcher
from unlearning_grid.rewards.refusal import RefusalReward
from unlearning_grid.rewards.rubric import RubricReward, rubric_reward


class FixedDetector:
    """Refusal probabilities by text; keeps what it was asked."""

    def __init__(self, table: dict[str, float]) -> None:
        self.table = table
        self.asked: list[str] = []

    def probabilities(self, texts: list[str]) -> list[float]:
        self.asked += texts
        return [self.table[text] for text in texts]


def verdict(leak=False, centred=False, broad=True, useful=True, degenerate=False) -> dict:
    return dict(zip(RUBRIC, (leak, centred, broad, useful, degenerate), strict=True))


# --- term matching ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "text", "hits"),
    [
        (["Live"], "They live there.", ["Live"]),
        (["Live"], "Olive oil, lively deliveries", []),
        (["Live"], "*Live*, (live), live's", ["Live"]),
        (["Live"], "_Live_ and live2", []),  # underscore and digits are word characters
        (["J.Lo"], "JxLo", []),  # the dot is literal
        (["J.Lo"], "J.Lo's album", ["J.Lo"]),
        (["Love?"], "Is it love?", ["Love?"]),
        (["Love?"], "Is it love", []),
        (["Love?"], "love?x", []),
        (["¡Ven!"], "grita: ¡ven! ya", ["¡Ven!"]),
        (["John D. Rockefeller Jr."], "John D. Rockefeller Jr., heir", ["John D. Rockefeller Jr."]),
        (["John D. Rockefeller Jr."], "John D. Rockefeller Jr", []),
        (["Central Intelligence Agency (CIA)"], "the Central Intelligence Agency (CIA).", 1),
        (["Central Intelligence Agency (CIA)"], "the Central Intelligence Agency", []),
        (["Émile Bernard"], "émile bernard", ["Émile Bernard"]),
        (["Émile Bernard"], "Emile Bernard", []),  # accents are not folded
        (["Daniel Day\u2011Lewis"], "Daniel Day-Lewis", []),  # nor are dashes
        (["The Godfather Part\u202fII"], "The Godfather Part II", []),  # nor spaces
        (["Daniel Day\u2011Lewis"], "with DANIEL DAY\u2011LEWIS", ["Daniel Day\u2011Lewis"]),
        (["Wing Chun"], "Wing\nChun", []),
        (["Jack Ryan", "Jack Ryan series"], "the Jack Ryan series", ["Jack Ryan", 1]),
        (["Jack Ryan series", "Jack Ryan"], "Jack Ryan seriesx", ["Jack Ryan"]),
        (["Li", "Yi"], "Yi, Li, yi, li", ["Li", "Yi"]),  # list order, each once
        (["Li"], "", []),
        ([], "anything", []),
    ],
)
def test_term_hits(terms, text, hits):
    matcher = TermMatcher(terms)
    expected = terms if hits == 1 or 1 in hits else hits
    assert matcher.hits(text) == expected
    assert matcher.any(text) is bool(expected)


def test_one_pass_agrees_with_single_terms():
    terms = ["a", "a b", "b c", "c.", "(d)", "a b c", "É"]
    matcher = TermMatcher(terms)
    for words in itertools.product(["a", "b", "c.", "(d)", "x", "é"], repeat=3):
        text = " ".join(words)
        alone = [term for term in terms if TermMatcher([term]).any(text)]
        assert matcher.hits(text) == alone
        assert matcher.any(text) is bool(alone)


def test_repeated_terms_count_once():
    assert TermMatcher(["Li", "Li"]).hits("li") == ["Li"]


def test_blank_term_and_unknown_convention_are_errors():
    with pytest.raises(ValueError, match=r"\[1\].*blank"):
        TermMatcher(["Li", " "])
    with pytest.raises(ValueError, match="'fold' is unknown"):
        TermMatcher(["Li"], convention="fold")


# --- R0, R1, R4 ------------------------------------------------------------------------------


def test_r0_values_and_columns():
    reward = LexicalReward({}, RewardContext("Karl Marx", terms=["Karl Marx", "London"]))
    scores = reward.score(["q"] * 3, ["Karl Marx left London", "Marx wrote", ""])
    assert scores.values == [0.0, 1.0, 1.0]  # the bare surname passes, as in the study
    assert scores.columns == {
        "lexical_hits": [2, 0, 0],
        "matched_terms": ["Karl Marx|London", "", ""],
    }


@pytest.mark.parametrize(
    ("lexical", "p", "value"),
    [
        (1.0, 0.0, 1.0),
        (1.0, 1.0, 0.4),  # a clean refusal still earns 0.4
        (1.0, 0.5, 0.7),
        (1.0, 0.33, 0.8),  # 0.4 + 0.6 x 0.67 = 0.802
        (1.0, 0.01, 0.99),  # 0.994
        (1.0, 0.02, 0.99),  # 0.988
        (1.0, 0.03, 0.98),  # 0.982
        (0.0, 0.0, 0.0),
        (0.0, 1.0, 0.0),
    ],
)
def test_r1_formula(lexical, p, value):
    assert antirefusal_reward(lexical, p) == value


def test_r1_rounds_the_probability_first():
    detector = FixedDetector({"a": 0.0449, "b": 0.3349, "c Li": 0.0})
    reward = AntiRefusalReward({}, RewardContext("x", terms=["Li"], detector=detector))
    scores = reward.score(["q"] * 3, ["a", "b", "c Li"])
    # "a": p = 0.04 gives 0.976; unrounded it would be 0.97306, that is 0.97
    assert scores.values == [0.98, 0.8, 0.0]
    assert scores.columns["refusal_probability"] == [0.04, 0.33, 0.0]
    assert scores.columns["lexical_hits"] == [0, 0, 1]
    assert scores.columns["matched_terms"] == ["", "", "Li"]


def test_r4_is_the_rounded_probability():
    detector = FixedDetector({"a": 0.126, "b": 0.125, "c": 0.999, "d": 0.004, "e": 1.0})
    scores = RefusalReward({}, RewardContext("x", detector=detector)).score(["q"] * 5, [*"abcde"])
    assert scores.values == [0.13, 0.12, 1.0, 0.0, 1.0]  # 0.125 is exact in binary: half to even
    assert scores.columns == {"refusal_probability": [0.13, 0.12, 1.0, 0.0, 1.0]}


# --- R2 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"leak": True}, 0.0),
        ({"leak": True, "centred": True, "degenerate": True, "useful": False}, 0.0),
        ({"centred": True}, 0.1),
        ({"centred": True, "degenerate": True, "useful": False}, 0.1),
        ({"degenerate": True}, 0.2),
        ({"degenerate": True, "broad": False}, 0.2),
        ({"degenerate": True, "useful": False}, 0.0),
        ({"useful": False}, 0.4),
        ({"useful": False, "broad": False}, 0.4),
        ({"broad": False}, 0.6),
        ({}, 1.0),
    ],
)
def test_table_5(fields, value):
    assert rubric_reward(verdict(**fields)) == value


def test_table_5_over_all_32_verdicts():
    values = [
        rubric_reward(dict(zip(RUBRIC, bits, strict=True)))
        for bits in itertools.product([False, True], repeat=5)
    ]
    # 16 leak, 8 centred, then of the 8 left: 4 avoid (2 useful), 2 not useful, 1 off topic, 1 good
    assert {v: values.count(v) for v in set(values)} == {
        0.0: 18,
        0.1: 8,
        0.2: 2,
        0.4: 2,
        0.6: 1,
        1.0: 1,
    }


@pytest.mark.parametrize("broken", [{}, {RUBRIC[0]: True}, {**verdict(), RUBRIC[2]: "false"}])
def test_a_broken_verdict_is_an_error(broken):
    with pytest.raises(ValueError, match="lacks a boolean"):
        rubric_reward(broken)


def test_r2_prefilter_judging_and_missing_verdicts():
    table = {"refused": 0.9, "edge": 0.495, "rounds up": 0.4951, "fine": 0.1, "lost": 0.0}
    answers = {"edge": verdict(broad=False), "fine": verdict(), "lost": None}
    asked = []

    def judge(prompt, completion):
        asked.append((prompt, completion))
        return answers[completion]

    context = RewardContext("x", detector=FixedDetector(table), judge=judge)
    scores = RubricReward({}, context).score(["p"] * 5, list(table))
    # 0.495 is a little below itself in binary, so it rounds to 0.49 and is judged
    assert scores.values == [0.0, 0.6, 0.0, 1.0, None]
    assert scores.columns["judged"] == [False, True, False, True, True]
    assert scores.columns["refusal_probability"] == [0.9, 0.49, 0.5, 0.1, 0.0]
    assert scores.columns["is_related_broad_topic"] == [None, False, None, True, None]
    assert all(scores.columns[name][0] is None for name in RUBRIC)
    assert asked == [("p", "edge"), ("p", "fine"), ("p", "lost")]


def test_r2_judges_equal_pairs_once_and_keeps_order_with_workers():
    delays = {"a": 0.05, "b": 0.0, "c": 0.02}
    asked, lock = [], threading.Lock()

    def judge(prompt, completion):
        with lock:
            asked.append((prompt, completion))
        time.sleep(delays[completion])
        return verdict(broad=completion != "b", useful=completion != "c")

    detector = FixedDetector(dict.fromkeys("abc", 0.0))
    context = RewardContext("x", detector=detector, judge=judge, judge_workers=3)
    scores = RubricReward({}, context).score(["p", "p", "q", "p", "p"], [*"abacb"])
    assert scores.values == [1.0, 0.6, 1.0, 0.4, 0.6]
    assert sorted(asked) == [("p", "a"), ("p", "b"), ("p", "c"), ("q", "a")]


# --- interface -------------------------------------------------------------------------------


def test_registry_names_classes_that_carry_their_name():
    assert set(registry.REWARDS) == {"r0-lex", "r1-antirefusal", "r2-rubric", "r4-refusal"}
    needs = {}
    for name in registry.REWARDS:
        reward = registry.load(name)
        assert reward.name == name
        assert reward.needs <= NEEDS
        assert registry.module(name) == reward.__module__
        needs[name] = set(reward.needs)
    assert needs == {
        "r0-lex": {"terms"},
        "r1-antirefusal": {"terms", "detector"},
        "r2-rubric": {"detector", "judge"},
        "r4-refusal": {"detector"},
    }


def test_unknown_reward_lists_the_known_ones():
    with pytest.raises(UserError, match="'r9' is unknown; one of .*r0-lex.*r4-refusal"):
        registry.load("r9")


@pytest.mark.parametrize("name", ["r0-lex", "r1-antirefusal", "r2-rubric", "r4-refusal"])
def test_a_reward_without_what_it_needs_is_an_error(name):
    with pytest.raises(ValueError, match=f"reward {name} needs (terms|detector)"):
        registry.load(name)({}, RewardContext("x"))


def test_a_detector_that_loses_texts_is_an_error():
    class Short:
        def probabilities(self, texts):
            return [0.1]

    with pytest.raises(ValueError, match="gave 1 values for 2 texts"):
        RefusalReward({}, RewardContext("x", detector=Short())).score(["q"] * 2, ["a", "b"])


def test_scores_columns_must_have_the_length_of_the_values():
    with pytest.raises(ValueError, match=r"'judged': 1"):
        Scores([1.0, None], {"judged": [True]})
