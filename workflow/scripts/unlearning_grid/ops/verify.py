"""Is everything there, and is it what the configuration says? By the manifests, not by file times.

Snakemake's own memory (.snakemake) plays no part, so the answer is the same for results that were
copied here, finished by an orphaned job, or outlived that folder.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unlearning_grid.config import load_file
from unlearning_grid.errors import UserError
from unlearning_grid.ops.reopen import reopen
from unlearning_grid.ops.retry import failed_verdicts
from unlearning_grid.ops.standing import (
    NO_LEARNING,
    RUNNING,
    SILENT,
    STALE,
    WAITING,
    Planned,
    Standing,
    choose,
    results_of,
    survey,
)
from unlearning_grid.runtime import manifest
from unlearning_grid.runtime.atomic import read_json
from unlearning_grid.spec.canonical import digest, digest_text
from unlearning_grid.spec.stages import Specs
from unlearning_grid.tables.results import FAILED, Results

DAMAGED, MISSING = "damaged", "missing"
KINDS = {
    DAMAGED: "outputs are not those of their manifest",
    STALE: "made from something other than what the configuration and the inputs are now",
    FAILED: "the last attempt failed",
    SILENT: "held by a worker without a sign of life",
    RUNNING: "a worker is at it",
    MISSING: "not made yet",
}
"""What keeps a grid from being complete -> in words, worst first."""

SHOWN = 5
EMPTY = digest_text("")
Tell = Callable[[int, int], None]


@dataclass
class Report:
    """What was found.

    Attributes:
        found: kind (of KINDS) -> folder -> why.
        current: results that count, no-learning cells included; `no_learning` are these.
        accepted: (rule, reason) -> how many current results.
        verdicts: audits with failed verdicts -> how many.
        coverage: lines that say how much of the grid is there.
        without_gpu: current results whose job held a GPU and computed without it.
        compared: results whose files were read and compared with their digests.
    """

    found: dict[str, dict[Path, str]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    current: int = 0
    no_learning: list[Path] = field(default_factory=list)
    accepted: Counter[tuple[str, str]] = field(default_factory=Counter)
    verdicts: dict[Path, int] = field(default_factory=dict)
    coverage: list[str] = field(default_factory=list)
    without_gpu: list[Path] = field(default_factory=list)
    compared: int = 0

    @property
    def complete(self) -> bool:
        """Whether all that was looked at is current and unharmed."""
        return not any(self.found.values())


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `verify`."""
    parser = commands.add_parser(
        "verify", parents=[common], help="is everything there and current, by the manifests"
    )
    parser.add_argument("patterns", nargs="*", help="folders below results/, such as 'grpo/7b/*'")
    parser.add_argument("--deep", action="store_true", help="read every output and compare digests")
    parser.add_argument("--all", action="store_true", help="name every folder, not the first few")
    parser.add_argument(
        "--reopen",
        action="store_true",
        help="take away the manifests of what is stale or damaged, so that the next run makes it",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    specs = Specs(load_file(arguments.config))
    results, above, built = results_of(specs)
    wanted = choose("verify", above + built, arguments.patterns)
    report = verify(results, wanted, arguments.deep, _Progress())
    lines = [f"{specs.config['name']}: {len(wanted)} results planned", "", *text(report)]
    if not arguments.all:
        lines = _shortened(lines)
    print("\n".join(lines))
    if arguments.reopen:
        # Reading takes time: what a job finished meanwhile must not be taken away.
        now = {s.folder for s in survey(results_of(specs)[0], wanted) if s.current}
        bad = {*report.found[STALE], *report.found[MISSING], *report.found[FAILED]} - now
        opened = reopen(bad | report.found[DAMAGED].keys(), [Path(at) for at, _, _ in above])
        print(f"\n{len(opened)} result(s) reopened" + ("; run the grid again" if opened else ""))
    return 0 if report.complete else 1


def verify(
    results: Results, wanted: Sequence[Planned], deep: bool = False, tell: Tell = lambda *_: None
) -> Report:
    """Check each of the `wanted` results (spec.plan.planned, ops.standing.tables).

    Current is what was made from the spec that the configuration implies now, and from inputs that
    are there now and current themselves; its outputs must be there.

    Args:
        deep: also read every output and compare it with its digest.
        tell: called with results looked at and their number.
    """
    report = Report()
    standings = survey(results, wanted)
    for number, standing in enumerate(standings):
        damage = _damage(standing, deep)
        report.compared += deep and (standing.current or bool(damage))
        if damage:
            report.found[DAMAGED][standing.folder] = damage
        elif standing.current:
            _count(report, standing)
        else:
            kind = MISSING if standing.word == WAITING else standing.word
            report.found[kind][standing.folder] = _why(standing)
        tell(number + 1, len(standings))
    folders = {standing.folder for standing in standings}
    failed = failed_verdicts(results.plan)
    report.verdicts = {folder: n for folder, n in failed.items() if folder in folders}
    report.coverage = _coverage(results.plan, standings)
    return report


def _count(report: Report, standing: Standing) -> None:
    report.current += 1
    if standing.word == NO_LEARNING:
        report.no_learning.append(standing.folder)
    run = read_json(standing.folder / manifest.RUN_NAME) or {}
    held = [attempt.get("gpus") for attempt in run.get("attempts", [])]
    if any(held) and not run.get("provenance", {}).get("gpu"):
        report.without_gpu.append(standing.folder)
    if standing.accepted:
        for reason in dict.fromkeys(entry["reason"] for entry in run.get("accepted", [])):
            report.accepted[standing.rule, reason] += 1


def _why(standing: Standing) -> str:
    if standing.workers:
        worker = standing.workers[0]
        return f"{worker.where}, {worker.sign_of_life}"
    return (standing.evidence or "").removeprefix("stale: ")


def _damage(standing: Standing, deep: bool) -> str | None:
    """What is wrong with the files of a result that says it is finished."""
    run = read_json(standing.folder / manifest.RUN_NAME)
    described = read_json(standing.folder / manifest.NAME)
    if not run or not described or standing.workers:
        return None
    accepted = run.get("accepted") or [{"from": run["spec_digest"]}]
    key = digest({"spec": accepted[0]["from"], "inputs": described["inputs"]})[:16]
    if key != run["key"]:
        return "manifest.json and run.json are not of one run"
    for name, expected in described["outputs"].items():
        path = standing.folder / name
        problem = _missing(path, expected) or (deep and _differs(standing.folder, name))
        if problem:
            return problem
    return None


def _missing(path: Path, expected: Any) -> str | None:
    """Whether an output, or a file of a folder, is absent or empty against its digest."""
    files = expected if isinstance(expected, Mapping) else {"": expected}
    if not path.exists():
        return f"{path.name} is missing"
    for name, content in files.items():
        file = path / name if name else path
        if not file.is_file():
            return f"{path.name}/{name} is missing"
        if not file.stat().st_size and content != EMPTY:
            return f"{file.relative_to(path.parent).as_posix()} is empty"
    return None


def _differs(folder: Path, name: str) -> str | None:
    try:
        manifest.check_output(folder / manifest.NAME, name)
    except UserError:
        return f"{Path(name).name} differs from its digest"
    return None


def _coverage(plan: Mapping[str, Any], standings: Iterable[Standing]) -> list[str]:
    """How many cells are trained and how many evaluations are complete, of those looked at."""
    parts: dict[str, list[bool]] = {"cells trained": [], "evaluations complete": []}
    evaluations: dict[tuple[str, str], bool] = {}
    for standing in standings:
        if standing.rule == "train_grpo":
            parts["cells trained"].append(standing.current)
        elif {"policy", "target"} <= standing.cell.keys():
            key = standing.cell["policy"], standing.cell["target"]
            evaluations[key] = evaluations.get(key, True) and standing.current
    parts["evaluations complete"] = list(evaluations.values())
    return [f"{sum(found)} of {len(found)} {what}" for what, found in parts.items() if found]


def text(report: Report) -> list[str]:
    """The report as lines, with every folder (a folder's line begins with four spaces)."""
    rows = [("current", report.current, "")]
    rows += [(kind, len(report.found[kind]), KINDS[kind]) for kind in KINDS if report.found[kind]]
    lines: list[str] = []
    for kind, number, words in rows:
        lines.append(f"{kind:<12}{number:>6}  {words}".rstrip())
        for folder, why in report.found.get(kind, {}).items():
            lines.append(f"    {folder.as_posix()}" + (f": {_line(why)}" if why else ""))
    lines.append("")
    if report.coverage:
        lines.append(f"Coverage: {', '.join(report.coverage)}.")
    if report.no_learning:
        lines.append(f"No learning, counted as current: {len(report.no_learning)} cells.")
        lines += [f"    {folder.as_posix()}" for folder in report.no_learning]
    for (rule, reason), number in sorted(report.accepted.items()):
        lines.append(f"Accepted: {number} x {rule}, {reason!r}.")
    if report.verdicts:
        total = sum(report.verdicts.values())
        lines.append(
            f"Missing verdicts: {total} in {len(report.verdicts)} audits; `ops retry` asks again."
        )
        lines += [f"    {folder.as_posix()}: {n}" for folder, n in report.verdicts.items()]
    if report.without_gpu:
        lines.append(
            f"Computed on the CPU though a GPU was held: {len(report.without_gpu)} results; torch "
            "saw none (a CPU build, a driver)."
        )
        lines += [f"    {folder.as_posix()}" for folder in report.without_gpu]
    if report.compared:
        lines.append(f"Compared with their digests, file by file: {report.compared} results.")
    complete = "Everything is there and current." if report.complete else "Not complete."
    return [*lines, complete]


def _line(words: str) -> str:
    """One line without control characters, not too long."""
    clean = "".join(c if c.isprintable() else " " for c in words)
    return clean if len(clean) <= 160 else clean[:159] + "…"


def _shortened(lines: Sequence[str]) -> list[str]:
    """The first folders of each kind only."""
    kept: list[str] = []
    run = 0
    for line in [*lines, ""]:
        if line.startswith("    "):
            run += 1
            if run <= SHOWN:
                kept.append(line)
            continue
        if run > SHOWN:
            kept.append(f"    … and {run - SHOWN} more (--all)")
        run = 0
        kept.append(line)
    return kept[:-1]


class _Progress:
    """One line on stderr now and then, for long looks."""

    def __init__(self, pause: float = 2.0) -> None:
        self.pause = pause
        self.last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last > self.pause:
            self.last = now
            end = "\r" if sys.stderr.isatty() else "\n"
            print(f"verify: {done} of {total} results", end=end, file=sys.stderr, flush=True)
