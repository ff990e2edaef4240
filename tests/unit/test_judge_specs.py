"""What a judge's prompt and code touch: specs by configuration, without a run."""

from typing import Any

import pytest

from support import config
from unlearning_grid.config import Config, load
from unlearning_grid.spec.code import reachable
from unlearning_grid.spec.stages import Specs

EVALUATION = {"policy": "base/7b", "target": "karl-marx"}
CELL = {"size": "7b", "target": "karl-marx", "init": "cold", "seed": 1234}
STAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "audit": ("audit_completions", EVALUATION),
    "terminal": ("audit_rollouts", {"policy": "grpo/7b", "target": "karl-marx"}),
    "second": ("audit_again", {**EVALUATION, "judge": "second", "replicate": "0"}),
    "retest": ("audit_again", {**EVALUATION, "judge": "audit", "replicate": "1"}),
    "warm-up": ("train_warmup", {"size": "7b", "target": "karl-marx", "seed": 1234}),
    "R2": ("train_grpo", {**CELL, "reward": "r2-rubric"}),
    "R0": ("train_grpo", {**CELL, "reward": "r0-lex"}),
    "answers": ("write_broad_answers", {"target": "karl-marx"}),
    "detectors": ("evaluate_refusal_detectors", {}),
}
SCORED = {"audit", "terminal", "second", "retest", "warm-up", "R2"}


def paper() -> dict[str, Any]:
    raw = config("config")
    raw["judges"]["second"] = raw["judges"]["audit"] | {"model": "another"}
    raw["agreement"] = {"judges": ["second"], "replicates": 1}
    return raw


def digests(raw: dict[str, Any]) -> dict[str, str]:
    specs = Specs(load(raw))
    return {name: specs.digest(stage, **cell) for name, (stage, cell) in STAGES.items()}


@pytest.mark.parametrize(
    ("judge", "key", "value", "touched"),
    [
        ("audit", "model", "m", {"audit", "terminal", "retest"}),
        ("audit", "effort", "high", {"audit", "terminal", "retest"}),
        ("audit", "max_output_tokens", 500, {"audit", "terminal", "retest"}),
        ("second", "model", "m", {"second"}),
        ("reward", "temperature", 0.5, {"R2", "warm-up"}),
        ("teacher", "model", "m", {"answers"}),
    ],
)
def test_a_judges_setting_touches_what_it_labels(
    judge: str, key: str, value: Any, touched: set[str]
) -> None:
    before, raw = digests(paper()), paper()
    raw["judges"][judge][key] = value
    after = digests(raw)
    assert {name for name in STAGES if before[name] != after[name]} == touched


@pytest.mark.parametrize(
    ("judge", "touched"),
    [
        ("audit", {"audit", "terminal", "retest", "second"}),  # one file for both audits
        ("reward", {"R2", "warm-up"}),
    ],
)
def test_a_prompts_text_touches_what_it_asks(
    judge: str, touched: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = paper()["judges"][judge]["prompt_file"]
    kept = Config.text
    more = ""
    monkeypatch.setattr(
        Config, "text", lambda self, name: kept(self, name) + (more if name == own else "")
    )
    before = digests(paper())
    more = "\nBe strict.\n"
    after = digests(paper())
    assert {name for name in STAGES if before[name] != after[name]} == touched


def modules(stage: str, raw: dict[str, Any]) -> set[str]:
    name, cell = STAGES[stage]
    return reachable(Specs(load(raw)).spec(name, **cell)["modules"])


def test_digests_hold_the_code_that_asks_and_reads_but_not_the_code_that_sends() -> None:
    for stage in SCORED:
        found = modules(stage, paper())
        assert {"judge.openai", "remote.requests", "models.detector"} <= found, stage
        assert not {"remote.transport", "remote.cache", "remote.client", "remote.faults"} & found
    assert {"remote.requests"} <= modules("answers", paper())
    for stage in ("audit", "terminal", "second", "retest"):
        assert {"judge.repetition", "judge.names"} <= modules(stage, paper())
    lexical = modules("R0", paper())
    assert "data.matching" in lexical
    assert not {n for n in lexical if n.startswith(("judge.names", "judge.openai", "remote."))}


def test_digests_of_the_lower_bound_hold_what_it_looks_with() -> None:
    raw = paper()
    raw["judges"]["audit"] = {"provider": "rules"}
    raw["agreement"] = {}
    found = modules("audit", raw)
    assert {"judge.lower_bound", "judge.language", "data.matching", "data.gold"} <= found
    assert "judge.openai" not in found
    spec = Specs(load(raw)).spec("audit_completions", **EVALUATION)
    assert spec["settings"]["judge"]["knowledge"] == "answers", "no more is known on real rows"
    assert set(spec["settings"]["judge"]["terms"]) == {"hard"}
