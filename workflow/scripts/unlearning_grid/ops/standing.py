"""How every result of a grid stands, in one word, with what is known about it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.ops.workers import Worker, workers
from unlearning_grid.paths import RESULTS
from unlearning_grid.runtime.atomic import read_json
from unlearning_grid.spec.plan import planned
from unlearning_grid.spec.rules import STAGES
from unlearning_grid.spec.stages import Specs
from unlearning_grid.tables.results import CURRENT, FAILED, Results

DONE, NO_LEARNING, RUNNING = "done", "no-learning", "running"
SILENT, STALE, WAITING = "silent", "stale", "waiting"
WORDS = (DONE, NO_LEARNING, RUNNING, SILENT, FAILED, STALE, WAITING)
"""Every word, FAILED of tables.results included. DONE and NO_LEARNING are current results."""

Planned = tuple[str, str, Mapping[str, Any]]


@dataclass(frozen=True)
class Standing:
    """One planned result.

    Attributes:
        word: one of WORDS. `silent`: a worker holds it and has given no sign of life for long.
        evidence: why it failed, is stale or waits, where that is known.
        workers: who works on it now.
        accepted: reasons of accepted edits.
    """

    folder: Path
    rule: str
    cell: Mapping[str, Any]
    word: str
    evidence: str | None = None
    workers: list[Worker] = field(default_factory=list)
    accepted: str | None = None

    @property
    def name(self) -> str:
        """The folder below results/."""
        return self.folder.relative_to(RESULTS).as_posix()

    @property
    def current(self) -> bool:
        """Whether it may be counted."""
        return self.word in (DONE, NO_LEARNING)

    @property
    def log(self) -> Path:
        """The log of its job."""
        return self.folder / f"{self.rule}.log"


def survey(results: Results, wanted: Iterable[Planned]) -> list[Standing]:
    """How each of the `wanted` results (spec.plan.planned) stands, in their order."""
    return [_stand(results, Path(folder), rule, cell) for folder, rule, cell in wanted]


def _stand(results: Results, folder: Path, rule: str, cell: Mapping[str, Any]) -> Standing:
    state = results.state(folder)
    if state.status == CURRENT:
        word = NO_LEARNING if rule == "train_grpo" and _stopped(folder) else DONE
        return Standing(folder, rule, cell, word, accepted=state.accepted)
    holders = workers(folder)
    if holders:
        word = SILENT if all(holder.silent for holder in holders) else RUNNING
        return Standing(folder, rule, cell, word, None, holders)
    evidence = state.evidence
    if state.status == FAILED:
        return Standing(folder, rule, cell, FAILED, evidence)
    stale = evidence is not None and evidence.startswith("stale")
    return Standing(folder, rule, cell, STALE if stale else WAITING, evidence)


def _stopped(folder: Path) -> bool:
    return (read_json(folder / "outcome.json") or {}).get("status") == NO_LEARNING


def results_of(specs: Specs) -> tuple[Results, list[Planned], list[Planned]]:
    """Results of a grid that know its tables too, what is planned above the tables, the tables."""
    plan = specs.plan()
    built = list(tables(specs))
    expected = {folder: specs.digest(rule, **cell) for folder, rule, cell in built}
    whole = {**plan, "expected": {**plan["expected"], **expected}}
    return Results(whole, strict=False), list(planned(specs)), built


def tables(specs: Specs) -> Iterator[Planned]:
    """(folder, rule, cell) of the plan, every table and every figure."""
    yield (RESULTS / "plan").as_posix(), "write_plan", {}
    for rule in STAGES:
        if rule == "build_terminal_audit_table" and not specs.config["terminal_audit"]["enabled"]:
            continue
        if rule.startswith("build_") and rule.endswith("_table"):
            name = rule.removeprefix("build_").removesuffix("_table")
            yield (RESULTS / "tables" / name).as_posix(), rule, {}
        elif rule.startswith("plot_"):
            yield (RESULTS / "figures" / rule.removeprefix("plot_")).as_posix(), rule, {}


def choose(
    command: str, items: Iterable[Planned], patterns: Sequence[str], rule: str | None = None
) -> list[Planned]:
    """The planned results of a rule (None: of all) whose folders match, in their order.

    Raises UserError, in the name of the command, when there is none.
    """
    found = [
        item
        for item in items
        if rule in (None, item[1]) and matches(item[0].removeprefix("results/"), patterns)
    ]
    if not found:
        raise UserError(f"{command}: no planned folder below results/ matches {list(patterns)}")
    return found


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name fits one of the shell patterns; without patterns every name does."""
    chosen = list(patterns)
    return not chosen or any(fnmatch(name, pattern.removeprefix("results/")) for pattern in chosen)
