"""What the grid has cost: GPU hours and judge tokens, attempts that failed included."""

import argparse
import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unlearning_grid.config import Config, load_file
from unlearning_grid.errors import UserError
from unlearning_grid.ops.columns import at_least, columns, ruled, short
from unlearning_grid.ops.spending import (
    TABLES,
    Prices,
    Spent,
    dollars,
    is_table,
    known_sum,
    spending,
)
from unlearning_grid.ops.standing import matches, tables
from unlearning_grid.runtime import meter
from unlearning_grid.runtime.attempts import FINISHED, KILLED, RUNNING
from unlearning_grid.spec.plan import planned
from unlearning_grid.spec.rules import STAGES
from unlearning_grid.spec.stages import Specs

COUNTS = ("sent", "cached", "failed", "input_tokens", "output_tokens", "reasoning_tokens")
CSV: tuple[str, ...] = (
    "folder",
    "rule",
    "policy",
    "size",
    "key",
    "spec",
    "nonce",
    "began",
    "outcome",
    "seconds",
    "gpus",
    "gpu_hours",
    "judges",
    *COUNTS,
    "usd",
)


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `cost`."""
    parser = commands.add_parser(
        "cost", parents=[common], help="GPU hours and judge tokens spent, failed attempts included"
    )
    parser.add_argument("patterns", nargs="*", help="policies, such as 'grpo/7b/*'; none means all")
    parser.add_argument("--cells", action="store_true", help="one line for each policy")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write every attempt as a row")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    specs = Specs(load_file(arguments.config))
    rules = {folder: rule for folder, rule, _ in [*planned(specs), *tables(specs)]}
    spent = spending(rules)
    if arguments.patterns:
        chosen = [s for s in spent if s.policy and matches(s.policy, arguments.patterns)]
        if spent and not chosen:
            raise UserError(f"cost: no policy with an attempt matches {arguments.patterns}")
        spent = chosen
    if not spent:
        raise UserError("cost: no attempt is recorded here; --directory names where results/ is")
    prices = prices_of(specs.config)
    if arguments.csv:
        write_csv(arguments.csv, spent, prices)
    sizes = list(specs.config["models"])
    print(f"Grid {specs.config['name']}: {len(spent)} attempts at {len(_folders(spent))} results\n")
    if arguments.cells:
        print("\n".join(by_policy(spent, prices)))
    else:
        print("\n".join(time_table(spent, sizes)))
        print("\n".join(judge_table(spent, sizes, prices)))
    print("\n".join(notes(spent, prices)))


def prices_of(config: Config) -> Prices:
    """The prices that the configuration names."""
    blocks: Mapping[str, Any] = config["judges"]
    return {name: block["price"] for name, block in blocks.items() if block.get("price")}


def time_table(spent: Sequence[Spent], sizes: Sequence[str]) -> list[str]:
    """Attempts, hours and GPU hours of each rule and size, and in all."""
    rows = [["rule", "size", "results", "attempts", "unfinished", "hours", "GPU h", "lost GPU h"]]
    for (rule, size), part in _groups(spent, sizes):
        rows.append([rule, size, *_times(part)])
    return ruled(columns([*rows, ["in all", "", *_times(spent)]], left=2))


def judge_table(spent: Sequence[Spent], sizes: Sequence[str], prices: Prices) -> list[str]:
    """Requests, tokens and dollars of each judge, rule and size; nothing where none was asked."""
    asking = [s for s in spent if s.attempt.judges]
    if not asking:
        return ["", "No judge was asked over a network."]
    rows = [["judge", "rule", "size", "sent", "cached", "failed", "tokens in", "out", "reasoning"]]
    rows[0].append("USD")
    for judge in sorted({judge for s in asking for judge in s.attempt.judges}):
        mine = [s for s in asking if judge in s.attempt.judges]
        for (rule, size), part in _groups(mine, sizes):
            counts = _counts(part).get(judge, {})
            usd = _usd({judge: counts}, prices)
            rows.append([judge, rule, size, *_numbers(counts), usd])
    whole = meter.total(s.attempt.judges for s in asking)
    rows.append(["in all", "", "", *_numbers(_flat(whole)), _usd(whole, prices)])
    return ["", *ruled(columns(rows, left=3))]


def by_policy(spent: Sequence[Spent], prices: Prices) -> list[str]:
    """One line for each policy, its evaluations included; then what belongs to none."""
    head = ["policy", "tries", "unfin.", "hours", "GPU h", "lost", "sent", "tokens", "USD"]
    rows = [head]
    parts: dict[str, list[Spent]] = {}
    for s in spent:
        parts.setdefault(s.policy or "(data, prompts, detectors, tables)", []).append(s)
    order = ("base", "warmup", "grpo")
    for name in sorted(parts, key=lambda n: (*(n.startswith(kind) for kind in order), n)):
        rows.append(_policy_row(name, parts[name], prices))
    rows.append(_policy_row("in all", spent, prices))
    return ruled(columns(rows))


def _policy_row(name: str, part: Sequence[Spent], prices: Prices) -> list[str]:
    judges = _counts(part)
    counts = _flat(judges)
    tokens = counts.get("input_tokens", 0) + counts.get("output_tokens", 0)
    asked = [short(counts.get("sent", 0)), short(tokens), _usd(judges, prices)]
    return [name, *_times(part)[1:], *(asked if judges else ["-"] * 3)]


def notes(spent: Sequence[Spent], prices: Prices) -> list[str]:
    """What the sums hold, and what they lack."""
    attempts = [s.attempt for s in spent]
    number = {o: sum(a.outcome == o for a in attempts) for o in (KILLED, RUNNING)}
    timeless = sum(a.seconds is None for a in attempts)
    lines = ["", "lost: in attempts that did not finish, also where the next one went on from them"]
    if number[KILLED]:
        lines.append(f"killed: {number[KILLED]} attempts, counted up to their last sign of life")
    if number[RUNNING]:
        lines.append(f"running: {number[RUNNING]} attempts, counted up to their last sign of life")
    if timeless:
        lines.append(f"missing: {timeless} attempts left no end and no sign of life, their time")
    gpus = sum(a.gpus is None and a.seconds is not None for a in attempts)
    if gpus:
        lines.append(f"missing: the GPUs of {gpus} attempts, which nothing names")
    judges = meter.total(a.judges for a in attempts)
    unmetered = sum(counts.get("unmetered", 0) for counts in judges.values())
    if unmetered:
        lines.append(f"missing: the tokens of {unmetered} replies, which their server did not name")
    for judge in sorted(judges.keys() - prices.keys()):
        if judges[judge].get("sent"):
            lines.append(f"missing: dollars of judge {judge}; set judges.{judge}.price")
    return lines


def write_csv(path: Path, spent: Iterable[Spent], prices: Prices) -> None:
    """Every attempt as a row; what is unknown is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, CSV, lineterminator="\n")
        writer.writeheader()
        for s in spent:
            facts = {name: getattr(s.attempt, name, None) for name in CSV}
            facts |= {"folder": s.folder.as_posix(), "rule": s.rule, "policy": s.policy}
            judges, counts = s.attempt.judges, _flat(s.attempt.judges)
            facts |= {"size": s.size, "judges": ";".join(sorted(judges))}
            facts |= {name: counts.get(name, 0) for name in COUNTS}
            usd, lacking = known_sum(dollars(j, c, prices) for j, c in judges.items())
            writer.writerow(facts | {"usd": "" if lacking else round(usd, 6)})


def _folders(spent: Iterable[Spent]) -> set[Path]:
    return {s.folder for s in spent}


def _groups(
    spent: Iterable[Spent], sizes: Sequence[str]
) -> list[tuple[tuple[str, str], list[Spent]]]:
    """Attempts by (rule, size): rules upstream first, sizes as configured; tables together."""
    parts: dict[tuple[str, str], list[Spent]] = {}
    for s in spent:
        rule = TABLES if is_table(s.rule) else s.rule
        parts.setdefault((rule, s.size), []).append(s)
    order = {name: number for number, name in enumerate([*STAGES, TABLES, *sizes])}
    return sorted(parts.items(), key=lambda p: [(order.get(n, len(order)), n) for n in p[0]])


def _times(part: Sequence[Spent]) -> list[str]:
    """Results, attempts, unfinished ones, hours, GPU hours, those of unfinished ones."""
    attempts = [s.attempt for s in part]
    unfinished = [a for a in attempts if a.outcome not in (FINISHED, RUNNING)]
    hours = _hours(a.seconds and a.seconds / 3600 for a in attempts)
    gpu, lost = (_hours(a.gpu_hours for a in some) for some in (attempts, unfinished))
    return [str(len(_folders(part))), str(len(attempts)), str(len(unfinished)), hours, gpu, lost]


def _hours(values: Iterable[float | None]) -> str:
    """A sum of hours; with "+" where something is missing in it."""
    return at_least(*known_sum(values))


def _counts(part: Iterable[Spent]) -> meter.Judged:
    return meter.total(s.attempt.judges for s in part)


def _flat(judges: Mapping[str, Mapping[str, int]]) -> Mapping[str, int]:
    """Counts over all judges."""
    return meter.total({"all": counts} for counts in judges.values()).get("all", {})


def _numbers(counts: Mapping[str, int]) -> list[str]:
    return [short(counts.get(name, 0)) for name in COUNTS]


def _usd(judges: Mapping[str, Mapping[str, int]], prices: Prices) -> str:
    known, lacking = known_sum(dollars(j, counts, prices) for j, counts in judges.items())
    if lacking == len(judges):
        return "?"
    return at_least(known, lacking)
