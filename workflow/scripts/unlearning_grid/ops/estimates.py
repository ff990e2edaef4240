"""What a job will take: as measured here, or else as resources/estimates.yaml says."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from unlearning_grid.ops.judge_requests import Asking, read_estimates
from unlearning_grid.ops.spending import Spent, is_table
from unlearning_grid.runtime.attempts import FINISHED, Attempt

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

    A result takes what all attempts up to the one that finished took together; made again, it is
    another one. One with an unknown time or number of GPUs is left out.
    """
    open_: dict[tuple[str, str], list[Attempt]] = {}
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for s in spent:
        tries = open_.setdefault((s.folder.as_posix(), s.attempt.key), [])
        tries.append(s.attempt)
        if s.attempt.outcome == FINISHED:
            del open_[s.folder.as_posix(), s.attempt.key]
            hours = [a.gpu_hours for a in tries]
            seconds = [a.seconds for a in tries]
            if None not in [*hours, *seconds]:
                whole = sum(filter(None, seconds)), sum(filter(None, hours)) * 3600
                found.setdefault((s.rule, s.size), []).append(whole)
    return {
        key: Estimate(median(s for s, _ in values), median(g for _, g in values), MEASURED)
        for key, values in found.items()
    }


def measured_tokens(spent: Iterable[Spent]) -> dict[tuple[str, str], Tokens]:
    """(judge, rule) -> mean tokens of a request that was sent here and whose server named them."""
    sums: dict[tuple[str, str], list[int]] = {}
    for s in spent:
        for judge, counts in s.attempt.judges.items():
            silent = counts.get("unmetered", 0) + counts.get("unavailable", 0)
            number = counts.get("sent", 0) - silent
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
        content = read_estimates(self.config.root)
        self.rules: Mapping[str, Any] = content["rules"]
        self.demo: Mapping[str, Any] = content["demo"]

    def of(self, rule: str, size: str, cell: Mapping[str, Any]) -> Estimate | None:
        """What a job of a rule takes; None where the file says nothing about it or its size."""
        built = "build" in self.config["models"].get(size, {})
        name = "tables" if is_table(rule) else rule
        entry = (self.demo.get(name) if built else None) or self.rules.get(name)
        if entry is None:
            return None
        if "collect" in entry and self._is_made(cell):
            return Estimate(entry["collect"], entry["collect"] * entry.get("gpus", 0), ASSUMED)
        each = entry["seconds"]
        if isinstance(each, Mapping):
            if size not in each:
                return None
            each = each[size]
        seconds = entry.get("start", 0) + each * self._number(entry["per"], rule, cell)
        return Estimate(seconds, seconds * entry.get("gpus", 0), ASSUMED)

    def _is_made(self, cell: Mapping[str, Any]) -> bool:
        """Whether generate_base_rows makes the rows of an evaluation before."""
        shared = self.config["generate"]["backend"] == "vllm"
        return shared and str(cell.get("policy")).startswith("base/")

    def _number(self, per: str, rule: str, cell: Mapping[str, Any]) -> int:
        if per == "rollout":
            return self.asking.rollouts
        if per == "target":
            return len(self.config["grid"]["targets"])
        if per == "step":
            return self.asking.warmup_steps(cell["target"])
        if per == "request":
            requests = self.asking.of(rule, cell)
            return requests.number if requests else 0
        return 1
