"""Why a result is not current: the field that changed, per rule and cell."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from textwrap import wrap
from typing import Any

from unlearning_grid.config import Config, load_file
from unlearning_grid.errors import UserError
from unlearning_grid.ops.differences import differences
from unlearning_grid.ops.standing import (
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
from unlearning_grid.runtime.ingredients import ingredients
from unlearning_grid.spec.environment import TRACKING
from unlearning_grid.spec.stages import Specs
from unlearning_grid.tables.results import FAILED, Results

SpecOf = Callable[[str, Mapping[str, Any]], dict[str, Any]]
NOT_MADE = "not made yet"
FOLLOWS = "unchanged, but made from results that are not current"
OF_THE_PLAN = ("plan: another digest", "made from another result of write_plan")
"""What any other reason brings with it: the plan lists every spec, and tables are made from it."""

# Block of the configuration that a stage's own settings come from.
BLOCKS = {
    "build_demo_world": "world",
    "split_target": "split",
    "train_refusal_detector": "detector.train",
    "write_broad_answers": "broad_answers",
    "train_warmup": "warmup",
    "train_grpo": "grpo",
    "generate_completions": "generate",
    "score_likelihoods": "likelihood",
    "audit_completions": "audit",
    "audit_again": "audit",
    "audit_rollouts": "audit",
    "weigh_terms": "term_weights",
}


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `why`."""
    parser = commands.add_parser(
        "why", parents=[common], help="what changed since a result was made"
    )
    parser.add_argument("rule", nargs="?", help="rule, train_grpo for example; none means all")
    parser.add_argument("cells", nargs="*", help="patterns below results/, such as 'grpo/7b/*'")
    parser.add_argument("--all", action="store_true", help="name every folder, not the first few")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    specs = Specs(load_file(arguments.config))
    results, above, built = results_of(specs)
    everything = above + built
    rules = list(dict.fromkeys(rule for _, rule, _ in everything))
    if arguments.rule and arguments.rule not in rules:
        raise UserError(f"why: no results of rule {arguments.rule!r}; one of {sorted(rules)}")
    wanted = choose("why", everything, arguments.cells, arguments.rule)
    found = why(results, wanted, everything, lambda rule, cell: specs.spec(rule, **cell))
    found = {(rule, named(specs.config, rule, text)): at for (rule, text), at in found.items()}
    print("\n".join(report(found, len(wanted), arguments.all)))


def why(
    results: Results, wanted: Sequence[Planned], everything: Iterable[Planned], spec_of: SpecOf
) -> dict[tuple[str, str], list[Standing]]:
    """(rule, reason) -> the results that are not current for that reason, in their order.

    A result may have several reasons: each field of its spec that changed, each rule whose results
    it was made from and that are others now. FOLLOWS stands for none of its own.

    Args:
        everything: all that is planned, to tell the rules of what a result was made from.
        spec_of: the spec of a rule's cell that the configuration implies now.
    """
    rules = {folder: rule for folder, rule, _ in everything}
    found: dict[tuple[str, str], list[Standing]] = {}
    for standing in survey(results, wanted):
        if standing.current:
            continue
        for reason in _reasons(standing, rules, spec_of):
            found.setdefault((standing.rule, reason), []).append(standing)
    return found


def _reasons(standing: Standing, rules: Mapping[str, str], spec_of: SpecOf) -> list[str]:
    if standing.word == FAILED:
        return [f"failed: {standing.evidence}"]
    if standing.word == WAITING:
        return [standing.evidence or NOT_MADE]
    if standing.word == SILENT:
        who = standing.workers[0]
        return [f"{who.where}: {who.sign_of_life}; the next run takes over from a dead one"]
    if standing.word != STALE:
        return ["being made now"]
    run = read_json(standing.folder / manifest.RUN_NAME) or {}
    new = spec_of(standing.rule, standing.cell)
    found = spec_changes(run, new) + _upstream(standing, rules)
    return [reason for reason in found if reason not in OF_THE_PLAN] or [FOLLOWS]


def spec_changes(run: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between the spec in a run.json and a new one, one line each."""
    old = run["spec"]
    lines = [f"{path}: {text}" for path, text in differences(old["settings"], new["settings"])]
    lines += [f"cell.{path}: {text}" for path, text in differences(old["cell"], new["cell"])]
    if old["code"] != new["code"]:
        lines.append(f"code: {_modules(run, new)}")
    if old["env"] != new["env"]:
        lines.append(f"environment: {_pins(run, new)}")
    return lines


def _now(new: Mapping[str, Any]) -> dict[str, Any]:
    """The ingredients of a new spec, which many results share."""
    return _ingredients(tuple(new.get("modules", ())), new["code"], new["env"])


@lru_cache(maxsize=512)
def _ingredients(modules: tuple[str, ...], code: str, env: str) -> dict[str, Any]:
    return ingredients({"modules": modules, "code": code, "env": env})


def _modules(run: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Modules that changed, came or went, as far as run.json tells."""
    old, now = run.get("modules") or {}, _now(new)["modules"]
    if not old or not now:
        return "a module changed (run.json does not say which)"
    edited = [name for name in sorted(old.keys() & now.keys()) if old[name] != now[name]]
    came, went = sorted(now.keys() - old.keys()), sorted(old.keys() - now.keys())
    return ", ".join([*edited, *(f"+ {n}" for n in came), *(f"- {n}" for n in went)])


def _pins(run: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    old, now = run.get("pins") or [], _now(new)["pins"]
    if not old or not now:
        return "a pin changed (run.json does not say which)"
    before, after = (
        {name: pin for pin in pins if (name := pin.partition("=")[0]).lower() not in TRACKING}
        for pins in (old, now)
    )
    names = [n for n in sorted(before.keys() | after.keys()) if before.get(n) != after.get(n)]
    return ", ".join(f"{before.get(n, '(none)')} -> {after.get(n, '(none)')}" for n in names)


def _upstream(standing: Standing, rules: Mapping[str, str]) -> list[str]:
    """Rules whose results this one was made from and that are now others, or gone."""
    described = manifest.read(standing.folder / manifest.NAME)
    lines = []
    for path, content in described["inputs"].items():
        folder = Path(path).parent.as_posix()
        name = rules.get(folder, folder)
        now = read_json(Path(path))
        if now is None:
            lines.append(f"what it was made from is gone: {name}")
        elif manifest.content_digest(now) != content:
            lines.append(f"made from another result of {name}")
    return list(dict.fromkeys(lines))


def named(config: Config, rule: str, reason: str) -> str:
    """A reason with the key of the configuration in place of the stage's own name for it."""
    path = reason.partition(": ")[0]
    block: Any = config.values
    for key in BLOCKS.get(rule, "").split("."):
        block = block.get(key) if isinstance(block, Mapping) and key else None
    if isinstance(block, Mapping) and path.split(".")[0] in block:
        return f"{BLOCKS[rule]}.{reason}"
    return reason


def report(
    found: Mapping[tuple[str, str], Sequence[Standing]], looked_at: int, every: bool = False
) -> list[str]:
    """Lines: each reason, and below it each rule with its results; what changed comes first.

    Args:
        every: name every folder; else the first of each rule, and of the last two reasons none.
    """
    if not found:
        return [f"{looked_at} results, all current."]
    by_reason: dict[str, list[tuple[str, Sequence[Standing]]]] = {}
    for (rule, reason), standings in found.items():
        by_reason.setdefault(reason, []).append((rule, standings))
    last = (NOT_MADE, FOLLOWS)
    lines = []
    for reason in sorted(by_reason, key=lambda r: last.index(r) + 1 if r in last else 0):
        lines.append(reason)
        if every:
            lines += [line for rule, at in by_reason[reason] for line in _folders(rule, at)]
        elif reason in last:
            counts = ", ".join(f"{rule} ({len(at)})" for rule, at in by_reason[reason])
            lines += wrap(counts, 96, initial_indent="    ", subsequent_indent="    ")
        else:
            lines += [_first(rule, at) for rule, at in by_reason[reason]]
    stale = {standing.folder for standings in found.values() for standing in standings}
    return [*lines, "", f"{len(stale)} of {looked_at} results are not current."]


def _first(rule: str, standings: Sequence[Standing]) -> str:
    more = f" and {len(standings) - 1} more" if len(standings) > 1 else ""
    return f"    {rule} ({len(standings)}): {standings[0].folder.as_posix()}{more}"


def _folders(rule: str, standings: Sequence[Standing]) -> list[str]:
    folders = [f"        {standing.folder.as_posix()}" for standing in standings]
    return [f"    {rule} ({len(folders)})", *folders]
