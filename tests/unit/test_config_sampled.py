"""Who is to label samples: what is refused, and what is planned."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from config_edits import Raw, problems_of, put
from support import config
from unlearning_grid.config import load
from unlearning_grid.grid import Evaluation, is_meant
from unlearning_grid.spec.plan import sampled_audits
from unlearning_grid.spec.stages import Specs

RUBRIC = "config/prompts/reworded-v1/rubric.txt"
LARGE = {"size": "7b", "reward": "r2-rubric"}


def opinion(judge: str, **where: Any) -> Callable[[Raw], None]:
    return put("sampled_audit/opinions", [{"judge": judge, "where": where}])


CASES: dict[str, tuple[list[Callable[[Raw], None]], str, tuple[str, ...]]] = {
    # 32 samples of 60 prompts, 400 evaluations (40 base models, 40 warm-ups, 320 cells)
    "everything by the audit's paid judge": (
        [put("sampled_audit/judge", None)],
        "sampled_audit.judge: audit asks gpt-5.6-luna, about 768,000 times (32 samples of 60 ",
        ("400 evaluations", "with provider rules", "sampled_audit.opinions"),
    ),
    "everything by a paid judge, of a few prompts": (
        [put("sampled_audit/judge", "audit"), put("sampled_audit/max_prompts", 5)],
        "sampled_audit.judge: audit asks gpt-5.6-luna, about 64,000 times (32 samples of 5 ",
        (),
    ),
    "nobody": (
        [put("sampled_audit/judge", "lowerbound")],
        'sampled_audit.judge: "lowerbound" is not one of ',
        ('Did you mean "lower-bound"?',),
    ),
    "an opinion of nobody": (
        [opinion("audt", **LARGE)],
        'sampled_audit.opinions.0.judge: "audt" is not one of ',
        ('Did you mean "audit"?',),
    ),
    "an opinion on nothing": (
        [opinion("audit", kind="base", reward="r2-rubric")],
        "sampled_audit.opinions.0.where: {'kind': 'base', 'reward': 'r2-rubric'} matches no ",
        ("correct it, or remove the entry",),
    ),
    "an opinion on everything": (
        [opinion("audit")],
        "sampled_audit.opinions.0.where: ",
        (),
    ),
    "an opinion by a rubric": (
        [
            put("judges/second", {"provider": "openai", "model": "m", "prompt_file": RUBRIC}),
            opinion("second", **LARGE),
        ],
        "sampled_audit.opinions.0.judge: second is asked for ['lexical_leakage', ",
        (RUBRIC,),
    ),
    "an opinion from an address that is not set": (
        [
            put("judges/second", {"provider": "rules"}),
            put("judges/audit/base_url", "$SOME_URL_OF_NOBODY"),
            put("audit/judge", "second"),
            opinion("audit", **LARGE),
        ],
        "judges.audit.base_url: environment variable SOME_URL_OF_NOBODY is not set",
        (),
    ),
    "greedy samples": (
        [put("sampled_audit/temperature", 0)],
        "sampled_audit.temperature: ",
        (),
    ),
    "no samples": ([put("sampled_audit/samples", 0)], "sampled_audit.samples: ", ()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_problem_is_named_with_its_key_and_the_fix(case: str) -> None:
    edits, beginning, parts = CASES[case]
    found = problems_of("config", *edits)
    assert len(found) == 1, found
    assert found[0].startswith(beginning), found[0]
    for part in parts:
        assert part in found[0], found[0]


def test_where_it_is_off_nothing_of_it_matters() -> None:
    raw = config("config")
    raw["sampled_audit"] = {
        "enabled": False,
        "judge": None,
        "opinions": [{"judge": "x", "where": {"size": "9b"}}],
    }
    made = Specs(load(raw)).plan()
    assert made["sampled_audits"] == []
    assert not [
        name for name in made["expected"] if name.startswith(("results/sampled", "results/samples"))
    ]


def test_one_judge_labels_all_and_an_opinion_its_part_each_pair_once() -> None:
    raw = config("demo")
    raw["sampled_audit"] = {
        "enabled": True,
        "opinions": [
            {"judge": "lower-bound", "where": {"reward": "r2-rubric", "init": "warm"}},
            {"judge": "lower-bound", "where": {"target": "bruce-lee", "reward": "r2-rubric"}},
            {"judge": "audit", "where": {"kind": "base"}},  # it labels them anyway
        ],
    }
    made = load(raw)
    found = sampled_audits(made)
    # 2 base models, 2 warm-ups, 16 cells; then 2 warm R2 cells, and bruce-lee's cold one
    assert Counter(one["judge"] for one in found) == {"audit": 20, "lower-bound": 3}
    assert {tuple(one) for one in found} == {("judge", "policy", "target")}
    assert [one["policy"] for one in found if one["judge"] == "lower-bound"] == [
        "grpo/tiny/bruce-lee/warm/r2-rubric/s0",
        "grpo/tiny/karl-marx/warm/r2-rubric/s0",
        "grpo/tiny/bruce-lee/cold/r2-rubric/s0",
    ]
    plan = Specs(made).plan()
    assert plan["sampled_audits"] == found and plan["samples"] == 32
    folders = Counter(name.split("/")[1] for name in plan["expected"])
    assert folders["samples"] == 20 and folders["sampled"] == 23
    first = "results/sampled/lower-bound/grpo/tiny/bruce-lee/warm/r2-rubric/s0/on/bruce-lee"
    assert first in plan["expected"]


@pytest.mark.parametrize(
    ("where", "base", "warmup", "cell"),
    [
        ({"kind": "base"}, True, False, False),
        ({"size": "tiny"}, True, True, True),
        ({"size": "small"}, False, False, False),
        ({"target": "bruce-lee", "seed": 3}, False, True, True),
        ({"seed": 4}, False, False, False),
        ({"init": "warm"}, False, False, True),
        ({"kind": "grpo", "init": "cold"}, False, False, False),
        ({"reward": "r0-lex", "target": "karl-marx"}, False, False, False),
        ({}, True, True, True),
    ],
)
def test_which_evaluations_are_meant(
    where: dict[str, Any], base: bool, warmup: bool, cell: bool
) -> None:
    policies = {
        "base/tiny": base,
        "warmup/tiny/bruce-lee/s3": warmup,
        "grpo/tiny/bruce-lee/warm/r0-lex/s3": cell,
    }
    found = {name: is_meant(Evaluation(name, "bruce-lee"), where) for name in policies}
    assert found == policies


def test_the_papers_samples_are_labelled_for_nothing() -> None:
    """Every one by rules; no text leaves the machine unless somebody lists who is to see it."""
    made = load(config("config"))
    judges = {one["judge"] for one in sampled_audits(made)}
    assert [made["judges"][name]["provider"] for name in judges] == ["rules"]
    assert len(sampled_audits(made)) == 400
