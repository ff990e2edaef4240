"""How far the three conventions differ on the rows of one policy, as Markdown (docs/metrics.md)."""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unlearning_grid.config import load_file
from unlearning_grid.errors import UserError
from unlearning_grid.rwku.conventions import CONVENTIONS, CORRECTED, OK
from unlearning_grid.rwku.score import SETS
from unlearning_grid.spec.stages import Specs
from unlearning_grid.tables.results import Results
from unlearning_grid.tables.rwku_core import core_scores
from unlearning_grid.tables.rwku_utility import utility_scores

OTHERS = tuple(name for name in CONVENTIONS if name != CORRECTED)


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `conventions`."""
    parser = commands.add_parser(
        "conventions", parents=[common], help="how far the RWKU conventions differ on one policy"
    )
    parser.add_argument("policy", help="policy with RWKU scores, such as base/0.5b")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    plan = Specs(load_file(arguments.config)).plan()
    print(report(Results(plan, strict=False), arguments.policy))


def report(results: Results, policy: str) -> str:
    """Two tables: each metric in each convention (means over targets), and what rows came to.

    Raises UserError when the policy has no current RWKU scores.
    """
    frames = list(_frames(results, policy))
    if not frames:
        known = {e["policy"] for e in results.plan["evaluations"]}
        fix = "run the grid" if policy in known else f"name a policy, such as {min(known)}"
        raise UserError(f"{policy}: no current RWKU scores; {fix}")
    targets = ", ".join(target for target, _ in frames)
    lines = [f"{policy}, targets: {targets}", "", *_values(frames), "", *_states(frames)]
    return "\n".join(lines)


def _frames(results: Results, policy: str) -> Iterator[tuple[str, dict[str, Any]]]:
    import pandas as pd

    for evaluation in results.plan["evaluations"]:
        if evaluation["policy"] != policy:
            continue
        target = evaluation["target"]
        paths = {name: results.file("rwku", policy, target, f"{name}.parquet") for name in SETS}
        found = {name: pd.read_parquet(path) for name, path in paths.items() if path}
        if len(found) == len(SETS):
            yield target, found


def _values(frames: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    found: dict[str, dict[str, list[float]]] = {}
    rows: Counter[str] = Counter()
    for _, tables in frames:
        for value in (*core_scores(tables), *utility_scores(tables)):
            metric, convention = value["metric"], value["convention"]
            own = found.setdefault(metric, {name: [] for name in CONVENTIONS})
            if value["value"] is not None:
                own[convention].append(value["value"])
            rows[metric] += value["rows"] if convention == CORRECTED else 0
    yield f"| metric | rows | {' | '.join(CONVENTIONS)} |"
    yield "| --- | ---: |" + " ---: |" * len(CONVENTIONS)
    for metric, own in found.items():
        cells = [_mean(own[name], len(frames)) for name in CONVENTIONS]
        yield f"| `{metric}` | {rows[metric]} | {' | '.join(cells)} |"


def _mean(values: Sequence[float], targets: int) -> str:
    """The mean, and over how many targets where some have no value."""
    if not values:
        return "-"
    mean = f"{sum(values) / len(values):.3f}"
    return mean if len(values) == targets else f"{mean} ({len(values)} of {targets} targets)"


def _states(frames: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Per set and score: rows whose score is another one, and rows that are not plainly scored."""
    import pandas as pd

    yield "| set | score | convention | rows | other score than corrected | states |"
    yield "| --- | --- | --- | ---: | ---: | --- |"
    for name in SETS:
        whole: Any = pd.concat([t[name].assign(target=target) for target, t in frames])
        for metric, part in whole.groupby("metric", sort=False):
            if name == "mia" and metric != "loss":
                continue  # equal in both conventions that have them
            keys = ["target", "prompt_id"]
            scores = part.pivot(index=keys, columns="convention", values="score").astype("Float64")
            for convention in OTHERS:
                own = part[part["convention"] == convention]
                if own.empty or CORRECTED not in scores:
                    continue
                change = (scores[convention] - scores[CORRECTED]).abs() > 1e-9
                states = own["state"].value_counts().sort_index().to_dict()
                shown = ", ".join(f"{n} {state}" for state, n in states.items() if state != OK)
                yield (
                    f"| {name} | `{metric}` | {convention} | {len(own)} | "
                    f"{int(change.fillna(False).sum())} | {shown} |"
                )
