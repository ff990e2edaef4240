"""What a job will take: as measured here, or else as resources/estimates.yaml says."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from unlearning_grid.config import load_yaml
from unlearning_grid.ops.judge_requests import ESTIMATES, Asking
from unlearning_grid.ops.spending import Spent, is_table
from unlearning_grid.runtime.attempts import FINISHED

MEASURED, ASSUMED = "measured", "assumed"


@dataclass(frozen=True)
class Estimate:
    """What one job takes.

    Attributes:
        seconds: from start to end, all attempts of a result together.
        gpu_seconds: seconds times GPUs.
        source: MEASURED or ASSUMED.
    """

    seconds: float
    gpu_seconds: float
    source: str


@dataclass(frozen=True)
class Tokens:
    """Tokens of one request and its reply."""

    sent: float
    written: float
    source: str


def measured(spent: Iterable[Spent]) -> dict[tuple[str, str], Estimate]:
    """(rule, size) -> median over the results that were finished here, whatever their spec was.

    A result takes what all attempts at it took together; one with an unknown time or number of
    GPUs is left out.
    """
    results: dict[tuple[str, str, str, str], list[Spent]] = {}
    for s in spent:
        results.setdefault((s.rule, s.size, s.folder.as_posix(), s.attempt.key), []).append(s)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (rule, size, _, _), parts in results.items():
        attempts = [s.attempt for s in parts]
        hours = [a.gpu_hours for a in attempts]
        seconds = [a.seconds for a in attempts]
        if FINISHED in [a.outcome for a in attempts] and None not in [*hours, *seconds]:
            whole = sum(filter(None, seconds)), sum(filter(None, hours)) * 3600
            found.setdefault((rule, size), []).append(whole)
    return {
        key: Estimate(median(s for s, _ in values), median(g for _, g in values), MEASURED)
        for key, values in found.items()
    }


def measured_tokens(spent: Iterable[Spent]) -> dict[tuple[str, str], Tokens]:
    """(judge, rule) -> mean tokens of a request that was sent here and whose server named them."""
    sums: dict[tuple[str, str], list[int]] = {}
    for s in spent:
        for judge, counts in s.attempt.judges.items():
            number = counts.get("sent", 0) - counts.get("unmetered", 0)
            named = (number, counts.get("input_tokens", 0), counts.get("output_tokens", 0))
            whole = sums.setdefault((judge, s.rule), [0, 0, 0])
            sums[judge, s.rule] = [a + b for a, b in zip(whole, named, strict=True)]
    return {
        key: Tokens(sent / number, written / number, MEASURED)
        for key, (number, sent, written) in sums.items()
        if number > 0 and sent > 0
    }


class Assumptions:
    """Times by resources/estimates.yaml, for the jobs of one configuration."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.config = asking.config
        content = load_yaml(self.config.root / ESTIMATES)
        self.rules: Mapping[str, Any] = content["rules"]
        self.demo: Mapping[str, Any] = content["demo"]

    def of(self, rule: str, size: str, cell: Mapping[str, Any]) -> Estimate | None:
        """What a job of a rule takes; None where the file says nothing about it or its size."""
        built = "build" in self.config["models"].get(size, {})
        name = "tables" if is_table(rule) else rule
        entry = (self.demo.get(name) if built else None) or self.rules.get(name)
        if entry is None:
            return None
        each = entry["seconds"]
        if isinstance(each, Mapping):
            if size not in each:
                return None
            each = each[size]
        seconds = entry.get("start", 0) + each * self._number(entry["per"], rule, cell)
        return Estimate(seconds, seconds * entry.get("gpus", 0), ASSUMED)

    def _number(self, per: str, rule: str, cell: Mapping[str, Any]) -> int:
        if per == "rollout":
            return self.asking.rollouts
        if per == "step":
            return self.asking.warmup_steps(cell["target"])
        if per == "request":
            requests = self.asking.of(rule, cell)
            return requests.number if requests else 0
        return 1
