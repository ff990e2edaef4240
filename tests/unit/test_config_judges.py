"""Bad configurations of judges, audits and term weights: refused by key, with the way out."""

from collections.abc import Callable

import pytest

from config_edits import Raw, problems_of, put
from support import config
from unlearning_grid.config import load

FIVE = "config/prompts/reworded-v1/audit-five.txt"
RUBRIC = "config/prompts/reworded-v1/rubric.txt"

CASES: dict[str, tuple[str, list[Callable[[Raw], None]], str, tuple[str, ...]]] = {
    "second judge that nobody named": (
        "config",
        [put("agreement/judges", ["secnd"])],
        'agreement.judges: "secnd" is not one of ',
        ("Add it.",),
    ),
    "the audit's judge as a second one": (
        "config",
        [put("agreement/judges", ["audit"])],
        "agreement.judges: audit is the audit's judge; ask it again by `replicates`.",
        (),
    ),
    "retest of a judge by rules": (
        "demo",
        [put("agreement/replicates", 2)],
        "agreement.replicates: audit works by rules, always the same; set it to 0.",
        (),
    ),
    "five labels under a prompt for six": (
        "config",
        [put("terminal_audit/labels", "five"), put("judges/audit/prompt_file", FIVE)],
        "audit.judge: audit is asked for ['broad_topic_helpfulness'], which its prompt (",
        (FIVE, "does not name", "give it the prompt of this label set"),
    ),
    "a rubric for an audit": (
        "config",
        [
            put("judges/second", {"provider": "openai", "model": "m", "prompt_file": RUBRIC}),
            put("agreement/judges", ["second"]),
        ],
        "agreement.judges: second is asked for ['lexical_leakage', ",
        (RUBRIC,),
    ),
    "terminal audit by nobody": (
        "config",
        [put("terminal_audit/judge", "terminl")],
        'terminal_audit.judge: "terminl" is not one of ',
        (),
    ),
    "temperature for a model that reasons": (
        "config",
        [put("judges/audit/temperature", 0.0)],
        "judges.audit.temperature: a model that reasons takes none; set it or `effort` to null.",
        (),
    ),
    "a key in place of its variable": (
        "config",
        [put("judges/audit/key_variable", "sk-proj-0123456789")],
        "judges.audit.key_variable: 'sk-proj-0123456789' does not match ",
        (),
    ),
    "a key in the address": (
        "config",
        [put("judges/audit/base_url", "https://host/v1?api-key=abc")],
        "judges.audit.base_url: holds a secret; keep it in a variable, written as $NAME.",
        (),
    ),
    "an address without a scheme": (
        "config",
        [put("judges/audit/base_url", "localhost:8000/v1")],
        'judges.audit.base_url: "localhost:8000/v1" is no address; ',
        ("http://",),
    ),
    "a judge's name that is no folder's": (
        "config",
        [put("judges/a b", {"provider": "rules"})],
        "judges: ",
        (),
    ),
    "settings of a reward that nobody registered": (
        "demo",
        [put("rewards/r0-lexx", {})],
        'rewards: "r0-lexx" is not one of ',
        ('Did you mean "r0-lex"?',),
    ),
    "form of a schema that this API does not have": (
        "config",
        [put("judges/audit/structured", "none")],
        "judges.audit.structured: none needs `api: chat`.",
        (),
    ),
    "label set that does not exist": (
        "config",
        [put("audit/labels", "seven")],
        "audit.labels: 'seven' is not one of ['five', 'six'].",
        (),
    ),
    "embedder of an unknown size": (
        "config",
        [
            put("grid/rewards", ["r0-lex", "r1-antirefusal", "r2-rubric", "pagerank-lex"]),
            put("term_weights/size", "8b"),
        ],
        'term_weights.size: "8b" is not one of ',
        (),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_problem_is_named_with_its_key_and_the_fix(case: str) -> None:
    name, edits, beginning, parts = CASES[case]
    found = problems_of(name, *edits)
    assert len(found) == 1, found
    assert found[0].startswith(beginning), found[0]
    for part in parts:
        assert part in found[0], found[0]


def test_the_papers_two_label_sets_take_a_judge_each() -> None:
    """Five labels on held-out answers, six on the last rollouts, as its older version has it."""
    raw = config("config")
    raw["judges"]["terminal"] = raw["judges"]["audit"]
    raw["judges"]["audit"] = raw["judges"]["audit"] | {"prompt_file": FIVE}
    raw["audit"] = {"judge": "audit", "labels": "five"}
    raw["terminal_audit"] = {"judge": "terminal", "labels": "six"}
    assert len(load(raw).cells) == 320


def test_an_address_that_nobody_uses_may_stay_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_URL", raising=False)
    raw = config("demo")
    raw["judges"]["later"] = {"provider": "openai", "model": "m", "base_url": "$SOME_URL"}
    assert load(raw)
