"""How the grid stands: stages of each group of policies, what runs, what failed, what to do."""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unlearning_grid.config import load_file
from unlearning_grid.errors import UserError
from unlearning_grid.grid import parse_policy
from unlearning_grid.ops.columns import columns
from unlearning_grid.ops.retry import failed_verdicts
from unlearning_grid.ops.standing import (
    DONE,
    NO_LEARNING,
    RUNNING,
    SILENT,
    STALE,
    WAITING,
    WORDS,
    Standing,
    matches,
    results_of,
    survey,
)
from unlearning_grid.ops.workers import span
from unlearning_grid.paths import RESULTS
from unlearning_grid.runtime import progress
from unlearning_grid.runtime.atomic import read_json
from unlearning_grid.spec.stages import Specs
from unlearning_grid.tables.results import FAILED

# Column -> rules whose results it counts.
COLUMNS = {
    "trained": ("train_warmup", "train_grpo"),
    "completions": ("generate_completions",),
    "samples": ("sample_completions",),
    "likelihoods": ("score_likelihoods",),
    "audit": ("audit_completions",),
    "sampled": ("audit_samples",),
    "terminal": ("audit_rollouts",),
    "rwku": ("evaluate_rwku",),
    "opinions": ("audit_again",),
}
MARKS = {NO_LEARNING: "N", RUNNING: "R", SILENT: "?", FAILED: "F", STALE: "S"}
LISTED = 8
OWN = "INFO unlearning_grid"  # in our own lines of a log; libraries print what they like
TAIL_LINES, TAIL_BYTES, WIDTH = 5, 16384, 120


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `status`."""
    parser = commands.add_parser(
        "status", parents=[common], help="what is there, what runs, what failed"
    )
    parser.add_argument("patterns", nargs="*", help="policies, such as 'grpo/7b/*'; none means all")
    parser.add_argument("--cells", action="store_true", help="one line for each policy")
    parser.add_argument("--all", action="store_true", help="every failure, not the first few")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    specs = Specs(load_file(arguments.config))
    results, above, built = results_of(specs)
    standings = survey(results, above)
    if arguments.patterns:
        chosen = arguments.patterns
        standings = [s for s in standings if (p := policy_of(s)) and matches(p, chosen)]
        if not standings:
            raise UserError(f"status: no policy of the grid matches {arguments.patterns}")
    tables = survey(results, built) if not arguments.patterns else []
    tables = [table for table in tables if table.rule != "write_plan"]
    print(f"Grid {specs.config['name']}: {len(specs.config.cells)} cells\n")
    print("".join(f"{line}\n\n" for line in another_grid(specs.config["name"])), end="")
    print("\n".join(matrix(standings, arguments.cells)))
    more = details(standings, None if arguments.all else LISTED)
    print("\n".join([*more, *summary(standings, tables, failed_verdicts(results.plan))]))


def another_grid(name: str) -> list[str]:
    """A warning where the working directory holds the results of a grid with another name."""
    plan = read_json(RESULTS / "plan" / "plan.json") or {}
    there = plan.get("name", name)
    if there == name:
        return []
    return [f'results/ here is of the grid "{there}", not "{name}": is --config (CONFIG=) right?']


def policy_of(standing: Standing) -> str | None:
    """Policy id that a result is of; None for data, prompts and detectors."""
    if standing.rule in COLUMNS["trained"]:
        return standing.name
    return standing.cell.get("policy")


def matrix(standings: Sequence[Standing], cells: bool) -> list[str]:
    """Policies by stage: groups of policies with counts, or one line a policy with words."""
    rows: dict[str, dict[str, list[Standing]]] = {}
    other = []
    for standing in standings:
        policy = policy_of(standing)
        if policy is None:
            other.append(standing)
            continue
        target = standing.cell.get("target") if policy.startswith("base/") else None
        name = _policy(policy, target) if cells else _group(policy)
        parts = rows.setdefault(name, {column: [] for column in COLUMNS})
        parts[_column(standing.rule)].append(standing)
    shown = [column for column in COLUMNS if any(parts[column] for parts in rows.values())]
    show = _words if cells else _counts
    table = [["policies" if not cells else "policy", *shown, ""]]
    table += [[n, *(show(rows[n][c]) for c in shown), ""] for n in sorted(rows, key=_order)]
    lines = columns(table, last=True) if rows else []
    if lines:
        lines.insert(1, "-" * max(map(len, lines)))
    if other:
        lines += ["", f"data, prompts, detectors: {_counts(other)}"]
    used = [w for w in MARKS if any(s.word == w for s in standings)]
    if used and not cells:
        lines += ["", ", ".join(f"{MARKS[word]} {word}" for word in used)]
    return lines


def _column(rule: str) -> str:
    return next(column for column, rules in COLUMNS.items() if rule in rules)


def _policy(policy: str, target: str | None) -> str:
    return f"{policy} on {target}" if target else policy


def _group(policy: str) -> str:
    """A policy's kind, size, init and reward."""
    facts = parse_policy(policy)
    names = ("kind", "size", "init", "reward")
    return " ".join(str(facts[name]) for name in names if name in facts)


def _order(name: str) -> int:
    """Base models, warm-ups, cells; within these the plan's order (sorting is stable)."""
    return ("base", "warmup", "grpo").index(name.replace("/", " ").split()[0])


def _counts(standings: Sequence[Standing]) -> str:
    """Results that count, of how many, and the others that did more than wait: 8/10 1R 1F."""
    if not standings:
        return "-"
    words = Counter(standing.word for standing in standings)
    done = words[DONE] + words[NO_LEARNING]
    marks = [f"{words[word]}{mark}" for word, mark in MARKS.items() if words[word]]
    return " ".join([f"{done}/{len(standings)}", *marks])


def _words(standings: Sequence[Standing]) -> str:
    """The one word of a policy's stage; of several results the worst, with a count."""
    if not standings:
        return "-"
    if len(standings) == 1:
        return standings[0].word
    worst = max((standing.word for standing in standings), key=WORDS.index)
    done = sum(standing.current for standing in standings)
    return f"{done}/{len(standings)}" if worst in (DONE, WAITING) else f"{worst} {done} done"


def details(standings: Sequence[Standing], listed: int | None) -> list[str]:
    """What runs, with its progress; what failed, with its error and the end of its log."""
    lines: list[str] = []
    running = [s for s in standings if s.word in (RUNNING, SILENT)]
    if running:
        lines += ["", f"Running ({len(running)})"]
        for standing in running[:listed]:
            lines += _running(standing)
        lines += _rest(len(running), listed)
    failed = [s for s in standings if s.word == FAILED]
    if failed:
        lines += ["", f"Failed ({len(failed)})"]
        for standing in failed[:listed]:
            lines.append(f"  {standing.name}: {standing.rule}")
            lines.append(f"    {clean(standing.evidence or '')}{_came_to(standing.folder)}")
            lines += [f"    | {line}" for line in tail(standing.log)]
        lines += _rest(len(failed), listed)
    return lines


def _running(standing: Standing) -> list[str]:
    lines, known = [], False
    for worker in standing.workers:
        far = how_far(progress.read(worker.work))
        known |= bool(far)
        lines.append(f"  {standing.name}: {standing.rule}" + (f", {far}" if far else ""))
        gone = "; probably gone, the next run takes over" if worker.silent else ""
        lines.append(f"    {worker.where}, {worker.sign_of_life}{gone}")
    if known:  # the log's last line is older
        return lines
    own = [line for line in tail(standing.log, 40) if OWN in line]
    return [*lines, *(f"    | {line.partition(OWN)[2].partition(': ')[2]}" for line in own[-1:])]


def _came_to(folder: Path) -> str:
    """How far a job was that ended before its end; its work folder keeps the last that it said."""
    readings = [reading for work in folder.glob("work/*/") if (reading := progress.read(work))]
    return "".join(f"; it was at {r.done} of {r.total} {r.unit}" for r in readings[-1:])


def how_far(reading: progress.Reading | None) -> str:
    """A reading in words: 40 of 150 steps, about 12 min left."""
    if reading is None:
        return ""
    left = f", about {span(reading.left)} left" if reading.left else ""
    return f"{reading.done} of {reading.total} {reading.unit}{left}"


def _rest(number: int, listed: int | None) -> list[str]:
    return [f"  … and {number - listed} more (--all)"] if listed and number > listed else []


def tail(log: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a log; anything may stand in it, so without control characters."""
    try:
        with open(log, "rb") as handle:
            handle.seek(0, 2)
            handle.seek(max(0, handle.tell() - TAIL_BYTES))
            text = handle.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    # A progress bar rewrites its line: what stood last is what a reader would see.
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return [line for line in map(clean, shown) if line.strip()][-lines:]


def clean(text: str) -> str:
    """One line that moves no cursor and sets no colours, not too long."""
    line = "".join(c if c.isprintable() else " " for c in text).rstrip()
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def summary(
    standings: Sequence[Standing],
    tables: Sequence[Standing],
    verdicts: Mapping[Path, int],
) -> list[str]:
    """Counts of all results, what is missing in finished ones, and what to do next."""
    words = Counter(standing.word for standing in standings)
    done = words[DONE] + words[NO_LEARNING]
    quiet = f" ({words[NO_LEARNING]} no-learning)" if words[NO_LEARNING] else ""
    rest = ", ".join(f"{words[word]} {word}" for word in WORDS[2:] if words[word])
    total = f"{done} of {len(standings)} results done{quiet}" + (f"; {rest}" if rest else "")
    lines = ["", total]
    missing = {s.folder: verdicts[s.folder] for s in standings if s.folder in verdicts}
    if missing:
        lines.append(
            f"{sum(missing.values())} verdicts failed in {len(missing)} audits and count as "
            "missing; `make retry` has the next run ask for them again"
        )
    built = sum(table.current for table in tables)
    if tables:
        lines.append(f"{built} of {len(tables)} tables and figures are built from what is there")
    return [*lines, f"Next: {_next(words, done == len(standings), built == len(tables))}"]


def _next(words: Mapping[str, int], done: bool, built: bool) -> str:
    if done and built:
        return (
            "nothing to run; `make show` prints a table, `make verify ARGS=--deep` checks all files"
        )
    if words.get(FAILED):
        return "read the errors above; the next run tries again what failed"
    if words.get(RUNNING):
        return "wait; look again with this command"
    if words.get(SILENT):
        return "see whether these workers still run; the next run takes over from dead ones"
    if words.get(STALE):
        return "`why` says what changed; run the grid, or `accept` an edit that changes no result"
    return "run the grid, by the command (and --configfile) that you gave before, if you did"
