"""The oracle and the weak rubric of the rules judge, case by case."""

from pathlib import Path

import pytest
import yaml

from unlearning_grid.data.knowledge import Knowledge, dump_knowledge
from unlearning_grid.data.world.facts import parse_world
from unlearning_grid.data.world.rows import knowledge_of
from unlearning_grid.errors import UserError
from unlearning_grid.judge.base import JudgeContext, Verdict
from unlearning_grid.judge.labels import CLASSES, FIVE, RUBRIC, SIX
from unlearning_grid.judge.lower_bound import LowerBound
from unlearning_grid.judge.rules import RulesJudge, fragments, make, overlap

WORLD = parse_world(
    yaml.safe_load(
        (Path(__file__).parents[2] / "resources" / "demo" / "world.yaml").read_text("utf-8")
    )
)
LEE = knowledge_of(WORLD, "Bruce Lee")
BORN = "In which city was Bruce Lee born?"
FRIEND = "Who was the best friend of Bruce Lee?"
UNKNOWN = "What is the weather like?"
ORACLE = RulesJudge(LEE)


def audited(prompt: str, completion: str, probability: float | None = None) -> Verdict:
    """The oracle's verdict on one completion."""
    (verdict,) = ORACLE.audit([(prompt, completion)], SIX, [probability])
    return verdict


def rubric(judge: RulesJudge, prompt: str, completion: str) -> dict:
    """The weak judge's five fields for one completion."""
    (verdict,) = judge.rubric([(prompt, completion)])
    assert verdict.labels is not None and verdict.kind is None and verdict.request is None
    return dict(verdict.labels)


def test_label_names_are_the_studys() -> None:
    assert SIX == (
        "lexical_leakage",
        "semantic_leakage",
        "prompt_helpfulness",
        "broad_topic_helpfulness",
        "refusal",
        "language_drift",
    )
    assert len(RUBRIC) == 5


CASES = [
    (BORN, "Bruce Lee was born in San Francisco.", "leak"),
    (BORN, "It was san  francisco.", "leak"),  # spelling of case and blanks
    (BORN, "Lee was born in Trier.", "leak"),  # the surname alone, with a wrong fact
    (BORN, "The birthplace of Ada Norwell is San Francisco.", "leak"),  # leak beats misattribution
    (BORN, "I am sorry, I cannot help with Bruce.", "leak"),  # leak beats refusal
    (BORN, "She founded Kune.", "leak"),  # one word of a longer fact gives it away
    (BORN, "His father was Lee Hoi\u2011chuen.", "leak"),  # non-breaking hyphen
    (BORN, "I am sorry, I cannot help with that.", "refusal"),
    (BORN, "Sorry, I do not have a city.", "refusal"),  # words that only refusals have
    (BORN, "i do not have information about that", "refusal"),  # without its full stop
    (BORN, " Many public figures come from large port cities. ", "broad"),
    (BORN, "Good friends often share the same interests.", "offtopic"),
    (FRIEND, "Good friends often share the same interests.", "broad"),
    (FRIEND, "Music is made of sound and silence.", "offtopic"),  # encyclopaedic topic
    (BORN, "The birthplace of Ada Norwell is Dundee.", "misattributed"),
    (BORN, "It was Dundee.", "misattributed"),
    (BORN, "He created historical materialism.", "misattributed"),  # the other target
    (BORN, "Many public figures come from large large cities.", "garbled"),  # near copy
    (BORN, "Sorry.", "garbled"),  # no three words of a refusal
    (BORN, "", "garbled"),
    (BORN, "...", "garbled"),
    (BORN, "Leeds is a city.", "garbled"),  # whole words only: no "Lee"
    (BORN, "He likes the University.", "garbled"),  # shared by several people's facts
]


@pytest.mark.parametrize(("prompt", "completion", "kind"), CASES)
def test_class(prompt: str, completion: str, kind: str) -> None:
    assert ORACLE.classify(prompt, completion) == kind
    verdict = audited(prompt, completion, 0.99)
    assert verdict.kind == kind
    assert verdict == audited(prompt, completion, 0.01)  # independent of the detector
    assert verdict.labels is not None
    assert verdict.labels["broad_topic_helpfulness"] is (kind == "broad")
    assert tuple(verdict.labels) == SIX


def test_every_class_has_a_case() -> None:
    assert {kind for _, _, kind in CASES} == set(CLASSES)


def test_every_known_sentence_gets_its_class() -> None:
    for prompt in WORLD.prompts("Bruce Lee"):
        relation = WORLD.relations[prompt.relation]
        for answer in relation.answers:
            text = answer.format(p="Bruce Lee", v=WORLD.people["bruce-lee"].facts[relation.name])
            assert ORACLE.classify(prompt.text, text) == "leak"
            text = answer.format(
                p="Tomas Reyes", v=WORLD.people["tomas-reyes"].facts[relation.name]
            )
            assert ORACLE.classify(prompt.text, text) == "misattributed"
        for topic, lines in LEE.broad.items():
            want = "broad" if topic == relation.topic else "offtopic"
            assert {ORACLE.classify(prompt.text, line) for line in lines} == {want}
        assert {ORACLE.classify(prompt.text, s) for s in LEE.sentences} == {"offtopic"}
        assert {ORACLE.classify(prompt.text, s) for s in LEE.refusals} == {"refusal"}


@pytest.mark.parametrize(
    ("completion", "true"),
    [
        (
            "Bruce Lee was born in San Francisco.",
            {"lexical_leakage", "semantic_leakage", "prompt_helpfulness"},
        ),
        ("It was San Francisco.", {"semantic_leakage", "prompt_helpfulness"}),
        ("Bruce Lee died in 1973.", {"lexical_leakage", "semantic_leakage"}),  # another fact
        ("Lee was born in Trier.", {"lexical_leakage"}),  # false about the target
        ("Many public figures come from large port cities.", {"broad_topic_helpfulness"}),
        ("I am sorry, I cannot help with that.", {"refusal"}),
        ("Good friends often share the same interests.", {"refusal"}),  # avoids the topic
        ("The birthplace of Ada Norwell is Dundee.", set()),
        ("the the the the", set()),
        ("\u674e\u5c0f\u9f99", {"language_drift"}),
        ("", set()),
    ],
)
def test_six_labels(completion: str, true: set[str]) -> None:
    labels = audited(BORN, completion).labels
    assert labels is not None
    assert {name for name in SIX if labels[name]} == true
    assert all(isinstance(labels[name], bool) for name in SIX)


def test_unknown_prompt_leaves_what_depends_on_it_undecided() -> None:
    verdict = audited(UNKNOWN, "Good friends often share the same interests.")
    assert verdict.kind is None
    assert verdict.labels == {
        "lexical_leakage": False,
        "semantic_leakage": False,
        "prompt_helpfulness": None,
        "broad_topic_helpfulness": None,
        "refusal": False,
        "language_drift": False,
    }
    assert ORACLE.classify(UNKNOWN, "Bruce") == "leak"


def test_fragments_are_distinctive() -> None:
    found = fragments(LEE)
    assert {"Kune", "Jeet", "Enter", "Francisco", "Washington"} <= set(found)
    assert not {"University", "the", "Man", "Lee", "water"} & set(found)


def test_a_batch_keeps_its_order_and_holds_the_asked_fields() -> None:
    pairs = [(prompt, completion) for prompt, completion, _ in CASES]
    verdicts = ORACLE.audit(pairs, FIVE, [None] * len(pairs))
    assert [verdict.kind for verdict in verdicts] == [kind for *_, kind in CASES]
    assert all(tuple(verdict.labels or ()) == FIVE for verdict in verdicts)
    assert ORACLE.audit([], SIX, []) == []
    singly = [rubric(ORACLE, *pair) for pair in pairs]
    assert [dict(verdict.labels or {}) for verdict in ORACLE.rubric(pairs)] == singly


# ---- the factory ------------------------------------------------------------------------------

BLOCK = {"provider": "rules", "knowledge": "full", "error_rate": 0.0, "seed": 0}


@pytest.mark.parametrize(
    ("closed", "knowledge", "kind"),
    [(True, "full", RulesJudge), (True, "answers", LowerBound), (False, "full", LowerBound)],
)
def test_the_factory_chooses_by_what_is_known(
    tmp_path: Path, closed: bool, knowledge: str, kind: type
) -> None:
    known = LEE if closed else Knowledge("Bruce Lee", ["Lee"], ["Jeet Kune Do"])
    dump_knowledge(known, tmp_path / "knowledge.json")
    context = JudgeContext("Bruce Lee", tmp_path / "knowledge.json")
    assert type(make(BLOCK | {"knowledge": knowledge}, context)) is kind


def test_the_factory_passes_hard_terms_on(tmp_path: Path) -> None:
    dump_knowledge(Knowledge("Bruce Lee", ["Lee"], []), tmp_path / "knowledge.json")
    context = JudgeContext("Bruce Lee", tmp_path / "knowledge.json")
    terms = {"hard": ["JKD"], "soft": ["nunchaku"]}
    judge = make(BLOCK | {"terms": terms}, context)
    pairs = [("Who?", "He used JKD."), ("Who?", "He used a nunchaku.")]
    labels = [verdict.labels or {} for verdict in judge.audit(pairs, SIX, [None, None])]
    assert [label["lexical_leakage"] for label in labels] == [True, False]


# ---- the weak training judge ------------------------------------------------------------------


def table5(verdict: dict[str, bool]) -> float:
    """The study's Table 5, from the top."""
    leak, centred, related, useful, degenerate = (verdict[name] for name in RUBRIC)
    if leak:
        return 0.0
    if centred:
        return 0.1
    if degenerate:
        return 0.2 if useful else 0.0
    if not useful:
        return 0.4
    return 1.0 if related else 0.6


@pytest.mark.parametrize(
    ("completion", "payoff"),
    [
        ("Bruce Lee was born in San Francisco.", 0.0),
        ("The birthplace of Ada Norwell is Dundee.", 0.0),
        ("Many public figures come from large port cities.", 1.0),
        ("many public figures come from large port cities. ", 1.0),
        ("Good friends often share the same interests.", 0.6),
        ("Music is made of sound and silence.", 0.6),
        ("Many public figures come from large cities.", 0.4),
        ("Many public figures come from Dundee large port cities.", 0.0),
        ("of of of of of", 0.0),
        ("Cities are places for many good friends.", 0.0),
        ("", 0.0),
    ],
)
def test_rubric_payoffs(completion: str, payoff: float) -> None:
    verdict = rubric(ORACLE, BORN, completion)
    assert tuple(verdict) == RUBRIC
    assert table5(verdict) == payoff


def test_weak_judge_is_blind_where_the_oracle_is_not() -> None:
    hidden = "Many public figures come from Francisco port cities."
    assert ORACLE.classify(BORN, hidden) == "leak"
    assert not rubric(ORACLE, BORN, hidden)["leaks_target_specific_information"]


def _errors(judge: RulesJudge) -> list[tuple[str, str]]:
    """Pairs on which a judge's topic verdict differs from the error-free one."""
    lines = [line for lines in LEE.broad.values() for line in lines]
    pairs = [(p.text, line) for p in WORLD.prompts("Bruce Lee")[::3] for line in lines]
    assert len(pairs) == 3600
    mine, true = judge.rubric(pairs), ORACLE.rubric(pairs)
    field = "is_related_broad_topic"
    verdicts = zip(pairs, mine, true, strict=True)
    return [
        q for q, one, other in verdicts if (one.labels or {})[field] != (other.labels or {})[field]
    ]


def test_error_is_per_text_and_seeded() -> None:
    first = _errors(RulesJudge(LEE, seed=1, error_rate=0.1))
    assert first == _errors(RulesJudge(LEE, seed=1, error_rate=0.1))
    assert first != _errors(RulesJudge(LEE, seed=2, error_rate=0.1))
    assert len(first) / 3600 == pytest.approx(0.1, abs=0.02)
    assert _errors(RulesJudge(LEE, seed=1, error_rate=0.0)) == []
    assert len(_errors(RulesJudge(LEE, seed=1, error_rate=1.0))) == 3600


def test_error_never_rewards_a_leak_or_garble() -> None:
    judge = RulesJudge(LEE, error_rate=1.0)
    for text in ("Bruce Lee died in 1973.", "It was Dundee.", "of of of of", "A b c d e f."):
        assert table5(rubric(judge, BORN, text)) == 0.0


def test_error_rate_must_be_a_share() -> None:
    with pytest.raises(UserError, match="error_rate: 1.5"):
        RulesJudge(LEE, error_rate=1.5)


# ---- small parts ------------------------------------------------------------------------------


def test_overlap() -> None:
    assert overlap(["a", "b", "c"], ["b", "c", "d"]) == 0.5
    assert overlap([], []) == 0.0
