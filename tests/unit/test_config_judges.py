"""Bad configurations of judges, audits and term weights: refused by key, with the way out."""

from collections.abc import Callable

import pytest

from config_edits import Raw, problems_of, put

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
