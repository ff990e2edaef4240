"""What was spent below a working directory: every attempt at every result, from the ledgers."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from unlearning_grid.grid import parse_policy
from unlearning_grid.paths import RESULTS
from unlearning_grid.runtime.attempts import Attempt, attempts_of

_POLICY = re.compile(
    r"(?:^|/)(base/[^/]+(?=/on/)|warmup/[^/]+/[^/]+/s\d+|grpo/[^/]+/[^/]+/[^/]+/[^/]+/s\d+)(?:/on/|$)"
)
UNKNOWN = "(unknown)"
TABLES = "tables, figures"

Prices = Mapping[str, Mapping[str, float]]
"""Entry of `judges` -> {"input", "output"}, US dollars per million tokens."""


@dataclass(frozen=True)
class Spent:
    """One attempt, and whose it was.

    Attributes:
        rule: UNKNOWN where neither the ledger nor the plan tells.
        policy: None for data, prompts, detectors and tables.
        size: of the policy or of the prompts; "" for none.
    """

    folder: Path
    rule: str
    policy: str | None
    size: str
    attempt: Attempt


def spending(rules: Mapping[str, str], results: Path = RESULTS) -> list[Spent]:
    """Every attempt below `results`, also at results that the grid no longer holds.

    Args:
        rules: folder -> rule of what is planned, for ledgers that do not name it.
    """
    found = []
    for folder in ledgers(results):
        policy = policy_in(folder)
        size = size_of(folder, policy)
        for attempt in attempts_of(folder):
            rule = attempt.stage or rules.get(folder.as_posix(), UNKNOWN)
            found.append(Spent(folder, rule, policy, size, attempt))
    return found


def ledgers(results: Path) -> Iterator[Path]:
    """Folders of results that were ever worked on, sorted; results do not lie in each other."""
    for place, folders, _ in os.walk(results):
        if "work" in folders:
            if (Path(place) / "work" / "attempts.jsonl").is_file():
                yield Path(place)
            folders.clear()
        folders.sort()


def policy_in(folder: Path) -> str | None:
    """The policy that a result's folder names."""
    match = _POLICY.search(folder.as_posix())
    return match[1] if match else None


def size_of(folder: Path, policy: str | None) -> str:
    """Size of a result, from its folder; "" where it has none."""
    if policy:
        return parse_policy(policy)["size"]
    parts = folder.as_posix().split("/")
    if len(parts) > 1 and parts[-2] == "base_rows":
        return parts[-1]
    return parts[-3] if len(parts) > 3 and parts[-4] == "prompts" and parts[-2] == "on" else ""


def is_table(rule: str) -> bool:
    """Whether a rule makes the plan, a table or a figure: seconds each, shown as one."""
    return rule == "write_plan" or rule.startswith("plot_") or rule.endswith("_table")


def dollars(judge: str, counts: Mapping[str, int], prices: Prices) -> float | None:
    """What tokens cost; None where the judge has no price. Reasoning is part of the output."""
    if judge not in prices:
        return None
    price = prices[judge]
    sent, written = counts.get("input_tokens", 0), counts.get("output_tokens", 0)
    return (sent * price["input"] + written * price["output"]) / 1e6


def known_sum(values: Iterable[float | None]) -> tuple[float, int]:
    """(sum of what is known, how many are not)."""
    listed = list(values)
    return sum(v for v in listed if v is not None), sum(v is None for v in listed)
