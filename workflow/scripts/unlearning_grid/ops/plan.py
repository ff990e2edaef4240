"""What a run would do, before it is started: jobs, reasons, GPU hours and judge requests."""

import argparse
import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unlearning_grid.config import load_file
from unlearning_grid.ops.amounts import amount
from unlearning_grid.ops.columns import at_least, columns, ruled, short
from unlearning_grid.ops.cost import prices_of
from unlearning_grid.ops.estimates import (
    ASSUMED,
    MEASURED,
    Assumptions,
    Estimate,
    Tokens,
    measured,
    measured_tokens,
)
from unlearning_grid.ops.judge_requests import Asking
from unlearning_grid.ops.spending import (
    TABLES,
    Prices,
    is_table,
    known_sum,
    policy_in,
    size_of,
    spending,
)
from unlearning_grid.ops.standing import (
    RUNNING,
    SILENT,
    STALE,
    WAITING,
    Planned,
    Standing,
    results_of,
    survey,
)
from unlearning_grid.ops.why import named, report, why
from unlearning_grid.paths import data_dir
from unlearning_grid.spec.rules import STAGES
from unlearning_grid.spec.stages import Specs
from unlearning_grid.tables.results import CURRENT, FAILED, Results

MARKS = {MEASURED: "m", ASSUMED: "a", None: "?"}
REASONS, WIDTH = 12, 93  # reasons without --reasons, and their length
PARTS = ("heldout", "grpo_train", "sft_train", "sft_test")
COLUMNS = {"new": (WAITING,), "stale": (STALE,), "failed": (FAILED,), "running": (RUNNING, SILENT)}


@dataclass
class Group:
    """Results of one rule and size.

    Attributes:
        of: how many there are.
        words: how those that are not current stand, by word.
        seconds, gpu_seconds: of all jobs to run; `unknown` of them have no estimate.
        sources: where the estimates come from.
    """

    rule: str
    size: str
    of: int = 0
    words: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    gpu_seconds: float = 0.0
    unknown: int = 0
    sources: set[str] = field(default_factory=set)

    @property
    def jobs(self) -> int:
        """How many are to be run."""
        return self.words.total()

    def add(self, standing: Standing, estimate: Estimate | None) -> None:
        """Count one result."""
        self.of += 1
        if standing.current:
            return
        self.words[standing.word] += 1
        if estimate is None:
            self.unknown += 1
            return
        self.seconds += estimate.seconds
        self.gpu_seconds += estimate.gpu_seconds
        self.sources.add(estimate.source)


@dataclass
class Questions:
    """Requests of one rule to one judge: how many at most, and their tokens."""

    judge: str
    rule: str
    jobs: int = 0
    number: int = 0
    tokens_in: float = 0.0
    tokens_out: float = 0.0
    source: str = ASSUMED

    def dollars(self, prices: Prices) -> float | None:
        """None without a price."""
        price = prices.get(self.judge)
        if price is None:
            return None
        return (self.tokens_in * price["input"] + self.tokens_out * price["output"]) / 1e6


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `plan`."""
    parser = commands.add_parser(
        "plan", parents=[common], help="what a run would do and cost, before it is started"
    )
    parser.add_argument(
        "--gpu-hours", type=amount, metavar="N", help="fail above so many GPU hours"
    )
    parser.add_argument("--judge-usd", type=amount, metavar="N", help="fail above so many dollars")
    parser.add_argument("--reasons", action="store_true", help="every reason, every job")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the jobs by rule and size")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    specs = Specs(load_file(arguments.config))
    results, above, built = results_of(specs)
    everything = above + built
    standings = survey(results, everything)
    spent = spending({folder: rule for folder, rule, _ in everything})
    asking = Asking(specs.config, split_rows(results, specs))
    groups = group(standings, measured(spent), Assumptions(asking))
    questions = ask(standings, asking, measured_tokens(spent))
    prices = prices_of(specs.config)
    if arguments.csv:
        write_csv(arguments.csv, groups)
    lines = [f"Grid {specs.config['name']}: {len(specs.config.cells)} cells", ""]
    lines += job_table(groups, list(specs.config["models"]))
    lines += question_table(questions, prices)
    if arguments.reasons or not all(s.current or s.word == WAITING for s in standings):
        lines += reasons(specs, results, everything, arguments.reasons)
    budget = arguments.gpu_hours, arguments.judge_usd
    compared, holds = against_budget(groups, questions, prices, *budget)
    print("\n".join([*lines, *compared]))
    return 0 if holds else 1


def split_rows(results: Results, specs: Specs) -> dict[str, dict[str, int]]:
    """Target -> rows of each part of its split, where a current one is there."""
    found = {}
    for target in specs.config["grid"]["targets"]:
        folder = data_dir(target, "split")
        if results.state(folder).status == CURRENT:
            with suppress(OSError):  # an output is gone, which `verify` tells
                found[target] = {part: _lines(folder / f"{part}.jsonl") for part in PARTS}
    return found


def _lines(path: Path) -> int:
    return sum(bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines())


def group(
    standings: Iterable[Standing],
    known: Mapping[tuple[str, str], Estimate],
    assumptions: Assumptions,
) -> list[Group]:
    """Results by rule and size, in the order of the plan; what is known here counts first."""
    groups: dict[tuple[str, str], Group] = {}
    for standing in standings:
        rule = standing.rule
        size = size_of(standing.folder, policy_in(standing.folder))
        estimate = None
        if not standing.current:
            estimate = known.get((rule, size)) or assumptions.of(rule, size, standing.cell)
        name = TABLES if is_table(rule) else rule
        groups.setdefault((name, size), Group(name, size)).add(standing, estimate)
    return list(groups.values())


def ask(
    standings: Iterable[Standing], asking: Asking, known: Mapping[tuple[str, str], Tokens]
) -> list[Questions]:
    """Requests to each judge by the results that are not current."""
    found: dict[tuple[str, str], Questions] = {}
    for standing in standings:
        requests = None if standing.current else asking.of(standing.rule, standing.cell)
        if requests is None:
            continue
        key = (requests.judge, standing.rule)
        tokens = known.get(key) or Tokens(requests.tokens_in, requests.tokens_out, ASSUMED)
        entry = found.setdefault(key, Questions(*key, source=tokens.source))
        entry.jobs += 1
        entry.number += requests.number
        entry.tokens_in += requests.number * tokens.sent
        entry.tokens_out += requests.number * tokens.written
    return [found[key] for key in sorted(found, key=lambda key: (key[0], [*STAGES].index(key[1])))]


def job_table(groups: Sequence[Group], sizes: Sequence[str]) -> list[str]:
    """Jobs by rule and size with their reasons and estimates, and their sums."""
    head = ["rule", "size", "jobs", "of", *COLUMNS, "min each", "GPU h", ""]
    rules = [*dict.fromkeys(g.rule for g in groups)]
    order = {name: number for number, name in enumerate([*rules, "", *sizes])}
    rows = [
        [g.rule, g.size, str(g.jobs), str(g.of), *_words(g.words), *_estimate(g)]
        for g in sorted(groups, key=lambda g: (order[g.rule], order.get(g.size, len(order))))
    ]
    jobs, words = sum(g.jobs for g in groups), sum((g.words for g in groups), Counter())
    hours, unknown = _gpu_hours(groups)
    whole = ["in all", "", str(jobs), str(sum(g.of for g in groups)), *_words(words), ""]
    whole += [at_least(hours, unknown, 1), ""]
    counted = f"Snakemake counts {jobs + 1} jobs: these and `all`." if jobs else "Nothing to run."
    legend = "m measured in this directory, a assumed (resources/estimates.yaml), ? unknown"
    lacking = [f"+ and {unknown} jobs without an estimate"] if unknown else []
    return [*ruled(columns([head, *rows, whole], 2, last=True)), "", counted, legend, *lacking]


def _gpu_hours(groups: Iterable[Group]) -> tuple[float, int]:
    """(hours of the jobs with an estimate, jobs without)."""
    listed = list(groups)
    return sum(g.gpu_seconds for g in listed) / 3600, sum(g.unknown for g in listed)


def _words(words: Counter[str]) -> list[str]:
    numbers = [sum(words[word] for word in names) for names in COLUMNS.values()]
    return [str(number or "-") for number in numbers]


def _estimate(g: Group) -> list[str]:
    """Minutes each, GPU hours of all, and where they come from."""
    if not g.jobs:
        return ["-", "-", ""]
    if g.jobs == g.unknown:
        return ["?", "?", MARKS[None]]
    marks = "".join(sorted(MARKS[source] for source in g.sources)) + ("?" if g.unknown else "")
    each = g.seconds / (g.jobs - g.unknown) / 60
    hours = f"{g.gpu_seconds / 3600:.1f}" if g.gpu_seconds else "-"
    return ["<0.1" if 0 < each < 0.05 else f"{each:.1f}", hours, marks]


def question_table(questions: Sequence[Questions], prices: Prices) -> list[str]:
    """Requests at most by judge and rule, their tokens and dollars, and the sums."""
    if not questions:
        return ["", "No judge would be asked over a network."]
    head = ["judge", "rule", "jobs", "requests", "each in", "out", "tokens in", "out", "USD", ""]
    rows = [
        [
            q.judge,
            q.rule,
            str(q.jobs),
            str(q.number),
            f"{q.tokens_in / q.number:.0f}",
            f"{q.tokens_out / q.number:.0f}",
            short(q.tokens_in),
            short(q.tokens_out),
            _usd([q], prices),
            MARKS[q.source],
        ]
        for q in questions
    ]
    sums = [sum(getattr(q, name) for q in questions) for name in ("tokens_in", "tokens_out")]
    whole = ["in all", "", "", str(sum(q.number for q in questions)), "", "", *map(short, sums)]
    whole += [_usd(questions, prices), ""]
    lines = ["", *ruled(columns([head, *rows, whole], 2, last=True)), ""]
    lines.append("requests: at most, but for second tries. Equal ones are sent once, R2 sends no")
    lines.append(
        "refusals, and what results/judge_cache holds costs nothing. In and out are tokens."
    )
    for judge in sorted({q.judge for q in questions} - prices.keys()):
        lines.append(f"no price of judge {judge}: set judges.{judge}.price")
    return lines


def _usd(questions: Iterable[Questions], prices: Prices) -> str:
    costs = [q.dollars(prices) for q in questions]
    known, lacking = known_sum(costs)
    return "?" if lacking == len(costs) else at_least(known, lacking)


def reasons(
    specs: Specs, results: Results, everything: Sequence[Planned], every: bool
) -> list[str]:
    """Why results are not current: so many results a reason, or every reason with its jobs."""
    found = why(results, everything, everything, lambda rule, cell: specs.spec(rule, **cell))
    found = {(rule, named(specs.config, rule, text)): at for (rule, text), at in found.items()}
    if every:
        return ["", *report(found, len(everything), every)]
    counts: Counter[str] = Counter()
    for (_, reason), standings in found.items():
        counts[reason] += len(standings)
    lines = [f"{number:5d}  {shortened(reason)}" for reason, number in counts.items()]
    more = len(lines) - REASONS
    rest = [f"       … and {more} more reasons (--reasons)"] if more > 0 else []
    return ["", "Why, by number of results", *lines[:REASONS], *rest]


def shortened(text: str) -> str:
    """One line that fits the tables."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def against_budget(
    groups: Sequence[Group],
    questions: Sequence[Questions],
    prices: Prices,
    gpu_hours: float | None,
    judge_usd: float | None,
) -> tuple[list[str], bool]:
    """(a line for each budget that is given, whether all of them hold for sure)."""
    lines, holds = [], True
    if gpu_hours is not None:
        hours, unknown = _gpu_hours(groups)
        lacking = f"{unknown} jobs without estimate" if unknown else ""
        line, fits = _compared(hours, gpu_hours, "GPU hours", lacking)
        lines, holds = [*lines, line], holds and fits
    if judge_usd is not None:
        usd, unknown = known_sum(q.dollars(prices) for q in questions)
        lacking = "no price" if unknown else ""
        line, fits = _compared(usd, judge_usd, "US dollars for judges", lacking)
        lines, holds = [*lines, line], holds and fits
    return (["", *lines] if lines else []), holds


def _compared(found: float, budget: float, unit: str, lacking: str) -> tuple[str, bool]:
    if found > budget:
        return f"above the budget: {found:.1f} {unit}, {budget:g} allowed", False
    if lacking:
        line = f"not known to be within the budget: {found:.1f} {unit} or more, {budget:g} allowed"
        return f"{line}; {lacking}", False
    return f"within the budget: {found:.1f} {unit}, {budget:g} allowed", True


def write_csv(path: Path, groups: Iterable[Group]) -> None:
    """Jobs by rule and size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        head = ["rule", "size", "jobs", "of", *COLUMNS, "seconds", "gpu_seconds", "source"]
        writer.writerow(head)
        for g in groups:
            words = [sum(g.words[word] for word in names) for names in COLUMNS.values()]
            source = "+".join(sorted(g.sources)) + ("+unknown" if g.unknown else "")
            times = [round(g.seconds, 1), round(g.gpu_seconds, 1)]
            writer.writerow([g.rule, g.size, g.jobs, g.of, *words, *times, source.strip("+")])
