"""Rewards against values worked out by hand from the study's equations and table 5."""

import itertools
import math
import re
import sys
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal
from types import ModuleType, SimpleNamespace

import pytest

from unlearning_grid.errors import UserError
from unlearning_grid.judge.base import JudgeContext, Verdict
from unlearning_grid.judge.labels import RUBRIC
from unlearning_grid.judge.registry import JUDGES
from unlearning_grid.paths import JUDGE_CACHE
from unlearning_grid.rewards import registry
from unlearning_grid.rewards.antirefusal import AntiRefusalReward, antirefusal_reward
from unlearning_grid.rewards.base import NEEDS, RewardContext, Scores
from unlearning_grid.rewards.build import build_reward, make_judge
from unlearning_grid.rewards.lexical import LexicalReward
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


class FixedJudge:
    """Verdicts by completion; keeps the batches that it was asked."""

    def __init__(self, table: dict[str, Verdict]) -> None:
        self.table = table
        self.asked: list[list[tuple[str, str]]] = []

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        self.asked.append(list(pairs))
        return [self.table[completion] for _, completion in pairs]


def verdict(leak=False, centred=False, broad=True, useful=True, degenerate=False) -> dict:
    return dict(zip(RUBRIC, (leak, centred, broad, useful, degenerate), strict=True))


# --- R0 --------------------------------------------------------------------------------------


def test_r0_values_and_columns():
    reward = LexicalReward({}, RewardContext("Karl Marx", terms=["Karl Marx", "London"]))
    scores = reward.score(["q"] * 3, ["Karl Marx left London", "Marx wrote", ""])
    assert scores.values == [0.0, 1.0, 1.0]  # the bare surname passes, as in the study
    assert scores.columns == {
        "lexical_hits": [2, 0, 0],
        "matched_terms": ["Karl Marx|London", "", ""],
    }


@pytest.mark.parametrize(
    ("terms", "text", "paper", "folded"),
    [
        (["Émile Bernard"], "Emile Bernard", 1.0, 0.0),
        (["Émile Bernard"], "ÉMILE BERNARD", 0.0, 0.0),
        (["Daniel Day\u2011Lewis"], "Daniel Day-Lewis", 1.0, 0.0),
        (["Part\u202fII"], "Part II", 1.0, 0.0),
        (["Love?"], "I love it", 1.0, 0.0),
        (["Love?"], "Love?", 0.0, 0.0),
        (["Agency (CIA)"], "the Agency (CIA)", 0.0, 0.0),
        (["Agency (CIA)"], "the Agency", 1.0, 1.0),
        (["J.Lo"], "j.lo's", 0.0, 0.0),
        (["J.Lo"], "JLo", 1.0, 1.0),
        (["Li"], "", 1.0, 1.0),
        (["Li"], "Lively", 1.0, 1.0),
    ],
)
def test_r0_conventions(terms, text, paper, folded):
    context = RewardContext("x", terms=terms)
    assert LexicalReward({}, context).score(["q"], [text]).values == [paper]
    for convention, value in (("paper", paper), ("folded", folded)):
        reward = LexicalReward({"convention": convention}, context)
        assert reward.score(["q"], [text]).values == [value]


def test_nested_terms_change_the_count_and_not_r0():
    context = RewardContext("x", terms=["Jack Ryan", "Jack Ryan series"])
    for convention, hits in (("paper", 2), ("folded", 1)):
        reward = LexicalReward({"convention": convention}, context)
        scores = reward.score(["q"], ["the Jack Ryan series"])
        assert scores.values == [0.0] and scores.columns["lexical_hits"] == [hits]


# --- rounding: R1 and R4 ---------------------------------------------------------------------

# p as the detector gives it, p rounded, R1 of a completion without a term. `round` looks at the
# exact binary value: a decimal that ends in 5 is a tie only if it is a sum of powers of two
# (0.125, 0.375, ...: half to even), else it lies a little above or below.
EDGES = [
    (0.0, 0.0, 1.0),
    (0.004999, 0.0, 1.0),
    (0.005, 0.01, 0.99),  # in binary a little above; 0.4 + 0.6 x 0.99 = 0.994
    (0.015, 0.01, 0.99),  # a little below
    (0.025, 0.03, 0.98),  # above; 0.982
    (0.035, 0.04, 0.98),  # above; 0.976
    (0.045, 0.04, 0.98),  # below
    (0.125, 0.12, 0.93),  # a tie, to the even 12; 0.928
    (0.126, 0.13, 0.92),  # 0.922
    (0.375, 0.38, 0.77),  # a tie, to the even 38; 0.772
    (0.33, 0.33, 0.8),  # 0.802
    (0.495, 0.49, 0.71),  # below; 0.706. R2 judges it
    (0.4951, 0.5, 0.7),
    (0.5, 0.5, 0.7),
    (0.505, 0.51, 0.69),  # above; 0.694
    (0.625, 0.62, 0.63),  # a tie, to the even 62; 0.628
    (0.875, 0.88, 0.47),  # a tie, to the even 88; 0.472
    (0.985, 0.98, 0.41),  # below; 0.412
    (0.995, 0.99, 0.41),  # below; 0.406
    (0.9951, 1.0, 0.4),
    (1.0, 1.0, 0.4),  # a clean refusal still earns 0.4
]


@pytest.mark.parametrize(("p", "rounded", "r1"), EDGES)
def test_rounding_at_the_edges(p, rounded, r1):
    detector = FixedDetector({"text": p, "Li": p})
    scores = RefusalReward({}, RewardContext("x", detector=detector)).score(["q"], ["text"])
    assert scores.values == [rounded]
    assert scores.columns == {"refusal_probability": [rounded]}
    reward = AntiRefusalReward({}, RewardContext("x", terms=["Li"], detector=detector))
    scores = reward.score(["q"] * 2, ["text", "Li"])
    assert scores.values == [r1, 0.0]
    assert scores.columns == {
        "lexical_hits": [0, 1],
        "matched_terms": ["", "Li"],
        "refusal_probability": [rounded] * 2,
    }


def test_a_tie_is_what_binary_says():
    ties = [p for p, _, _ in EDGES if Decimal(p) * 200 % 2 == 1]
    assert ties == [0.125, 0.375, 0.625, 0.875]
    for p, rounded, _ in EDGES:  # Decimal(p) is the exact value of the float
        assert float(Decimal(p).quantize(Decimal("0.01"), ROUND_HALF_EVEN)) == rounded


def test_r1_over_all_probabilities_of_two_decimals():
    """0.6 N is an even number of thousandths, so that the last rounding meets no tie."""
    for hundredths in range(101):
        exact = Decimal("0.4") + Decimal("0.6") * (100 - hundredths) / 100
        expected = float(exact.quantize(Decimal("0.01")))
        assert antirefusal_reward(1.0, hundredths / 100) == expected
        assert antirefusal_reward(0.0, hundredths / 100) == 0.0


def test_r1_rounds_the_probability_first():
    detector = FixedDetector({"a": 0.0449})
    reward = AntiRefusalReward({}, RewardContext("x", terms=["Li"], detector=detector))
    # p = 0.04 gives 0.976; unrounded it would be 0.97306, that is 0.97
    assert reward.score(["q"], ["a"]).values == [0.98]


def test_r1_takes_a_convention():
    context = RewardContext("x", terms=["Love?"], detector=FixedDetector({"love": 0.0}))
    for convention, value in (("paper", 1.0), ("folded", 0.0)):
        reward = AntiRefusalReward({"convention": convention}, context)
        assert reward.score(["q"], ["love"]).values == [value]


# --- R2 --------------------------------------------------------------------------------------

# Leak, Centred, Broad, Useful, Degenerate; from table 5 by hand.
TABLE_5 = """
    ----- 0.4   ----D 0.0   ---U- 0.6   ---UD 0.2   --B-- 0.4   --B-D 0.0   --BU- 1.0   --BUD 0.2
    -C--- 0.1   -C--D 0.1   -C-U- 0.1   -C-UD 0.1   -CB-- 0.1   -CB-D 0.1   -CBU- 0.1   -CBUD 0.1
    L---- 0.0   L---D 0.0   L--U- 0.0   L--UD 0.0   L-B-- 0.0   L-B-D 0.0   L-BU- 0.0   L-BUD 0.0
    LC--- 0.0   LC--D 0.0   LC-U- 0.0   LC-UD 0.0   LCB-- 0.0   LCB-D 0.0   LCBU- 0.0   LCBUD 0.0
"""
TABLE_5_ROWS = [(row, float(value)) for row, value in re.findall(r"(\S{5}) (\S+)", TABLE_5)]


def test_the_table_is_complete():
    every = {"".join(row) for row in itertools.product("-L", "-C", "-B", "-U", "-D")}
    assert len(TABLE_5_ROWS) == 32 and {row for row, _ in TABLE_5_ROWS} == every


@pytest.mark.parametrize(("row", "value"), TABLE_5_ROWS)
def test_table_5(row, value):
    assert rubric_reward(verdict(*(mark != "-" for mark in row))) == value


@pytest.mark.parametrize(
    "broken",
    [{}, {RUBRIC[0]: True}, {**verdict(), RUBRIC[2]: "false"}, {**verdict(), RUBRIC[3]: None}],
)
def test_a_broken_verdict_is_an_error(broken):
    with pytest.raises(ValueError, match="lacks a boolean"):
        rubric_reward(broken)


def test_r2_prefilter_judging_and_missing_verdicts():
    table = {"refused": 0.9, "edge": 0.495, "rounds up": 0.4951, "fine": 0.1, "lost": 0.0}
    judge = FixedJudge(
        {
            "edge": Verdict(verdict(broad=False), request="k1"),
            "fine": Verdict(verdict()),
            "lost": Verdict(None, failure="truncated", request="k2"),
        }
    )
    context = RewardContext("x", detector=FixedDetector(table), judge=judge)
    scores = RubricReward({}, context).score(["p"] * 5, list(table))
    # 0.495 is a little below itself in binary, so it rounds to 0.49 and is judged
    assert scores.values == [0.0, 0.6, 0.0, 1.0, None]
    assert scores.columns["judged"] == [False, True, False, True, True]
    assert scores.columns["refusal_probability"] == [0.9, 0.49, 0.5, 0.1, 0.0]
    assert scores.columns["is_related_broad_topic"] == [None, False, None, True, None]
    assert all(scores.columns[name][0] is None for name in RUBRIC)
    assert scores.columns["verdict"] == ["refusal", "ok", "refusal", "ok", "truncated"]
    assert scores.columns["request"] == [None, "k1", None, None, "k2"]
    assert judge.asked == [[("p", "edge"), ("p", "fine"), ("p", "lost")]]


def test_r2_judges_equal_pairs_once_and_in_one_batch():
    rows = {"a": verdict(), "b": verdict(broad=False), "c": verdict(useful=False)}
    judge = FixedJudge({text: Verdict(labels) for text, labels in rows.items()})
    detector = FixedDetector(dict.fromkeys("abc", 0.0))
    context = RewardContext("x", detector=detector, judge=judge)
    scores = RubricReward({}, context).score(["p", "p", "q", "p", "p"], [*"abacb"])
    assert scores.values == [1.0, 0.6, 1.0, 0.4, 0.6]
    assert judge.asked == [[("p", "a"), ("p", "b"), ("q", "a"), ("p", "c")]]


def test_r2_asks_nobody_about_refusals():
    judge = FixedJudge({})
    context = RewardContext("x", detector=FixedDetector({"no": 1.0}), judge=judge)
    assert RubricReward({}, context).score(["p"] * 2, ["no", "no"]).values == [0.0, 0.0]
    assert judge.asked == []


def test_r2_with_a_judge_that_loses_a_verdict_is_an_error():
    context = RewardContext("x", detector=FixedDetector({"a": 0.0}), judge=lambda pairs: [])
    with pytest.raises(ValueError):
        RubricReward({}, context).score(["p"], ["a"])


# --- interface -------------------------------------------------------------------------------


def test_registry_names_classes_that_carry_their_name():
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
        "r3-fuzzy": {"hard_terms"},
        "r4-refusal": {"detector"},
        "exp-lex": {"terms"},
        "pagerank-lex": {"terms", "term_weights"},
    }


def test_unknown_reward_lists_the_known_ones():
    with pytest.raises(UserError, match="'r9' is unknown; one of .*r0-lex.*r4-refusal"):
        registry.load("r9")


@pytest.mark.parametrize("name", sorted(registry.REWARDS))
def test_a_reward_without_what_it_needs_is_an_error(name):
    with pytest.raises(ValueError, match=f"reward {name} needs (terms|hard_terms|detector)"):
        registry.load(name)({}, RewardContext("x"))
    with pytest.raises(ValueError, match="needs term_weights"):
        registry.load("pagerank-lex")({}, RewardContext("x", terms=["Li"]))


def test_no_completion_no_score():
    context = RewardContext(
        "x",
        terms=["Li"],
        hard_terms=["Li"],
        term_weights={"Li": 1.0},
        detector=FixedDetector({}),
        judge=FixedJudge({}),
    )
    for name in registry.REWARDS:
        assert registry.load(name)({}, context).score([], []).values == []


def test_a_reward_gets_its_weights_from_an_input(tmp_path):
    path = tmp_path / "weights.json"
    path.write_text('{"London": 0.5}', encoding="utf-8")
    asked = []

    def artefact(name, file):
        asked.append((name, file))
        return path

    job = SimpleNamespace(inputs={"weights": "manifest.json"}, artefact=artefact)
    block = {
        "class": registry.REWARDS["pagerank-lex"],
        "subject": "x",
        "terms": ["London"],
        "settings": {"convention": "paper", "scale": 2.0, "max_count": 3},
    }
    reward = build_reward(job, block)  # type: ignore[arg-type]
    assert reward.score(["q"], ["London"]).values == [math.exp(-1.0)]
    assert asked == [("weights", "weights.json")]


def test_a_judge_gets_the_jobs_means(tmp_path, monkeypatch):
    made = []
    provider = ModuleType("provider")
    monkeypatch.setattr(provider, "make", lambda *words: made.append(words), raising=False)
    monkeypatch.setitem(sys.modules, "provider", provider)
    monkeypatch.setitem(JUDGES, "new", "provider:make")
    job = SimpleNamespace(
        inputs={"knowledge": "m"},
        artefact=lambda *_: tmp_path / "known.json",
        judge_requests=3,
        stop_requested=False,
    )
    block = {"provider": "new"}
    make_judge(job, block, "x", replicate=2)  # type: ignore[arg-type]
    ((given, context),) = made
    assert given == block and not context.stop_requested()
    wanted = JudgeContext("x", tmp_path / "known.json", 3, 2, JUDGE_CACHE, context.stop_requested)
    assert context == wanted
    job.stop_requested = True
    assert context.stop_requested()


def test_a_detector_that_loses_texts_is_an_error():
    class Short:
        def probabilities(self, texts):
            return [0.1]

    with pytest.raises(ValueError, match="gave 1 values for 2 texts"):
        RefusalReward({}, RewardContext("x", detector=Short())).score(["q"] * 2, ["a", "b"])


def test_scores_columns_must_have_the_length_of_the_values():
    with pytest.raises(ValueError, match=r"'judged': 1"):
        Scores([1.0, None], {"judged": [True]})
