"""What is there and what is missing: the grid by stage."""

import argparse
from pathlib import Path
from typing import Any

from unlearning_grid.config import load_file
from unlearning_grid.ops.retry import failed_verdicts
from unlearning_grid.ops.show import layout
from unlearning_grid.paths import policy_dir, stage_dir
from unlearning_grid.spec.plan import EVALUATION_STAGES
from unlearning_grid.spec.stages import Specs
from unlearning_grid.tables.results import Results


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `status`."""
    parser = commands.add_parser("status", parents=[common], help="what is there, what is missing")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    plan = Specs(load_file(arguments.config)).plan()
    print(status(Results(plan, strict=False)))


def status(results: Results) -> str:
    """One line per policy with the state of each stage; reasons of failures below."""
    rows = [["policy", "trained", *EVALUATION_STAGES, ""]]
    reasons: list[str] = []
    for evaluation in results.plan["evaluations"]:
        policy, target = evaluation["policy"], evaluation["target"]
        folders = [stage_dir(stage, policy, target) for stage in EVALUATION_STAGES]
        if not policy.startswith("base/"):
            folders.insert(0, policy_dir(policy))
        states = [results.state(Path(folder)) for folder in folders]
        cells = [state.status for state in states]
        if policy.startswith("base/"):
            cells.insert(0, "-")
            policy = f"{policy} on {target}"
        rows.append([policy, *cells, ""])
        reasons += [
            f"{folder.as_posix()}: {state.evidence}"
            for folder, state in zip(folders, states, strict=True)
            if state.evidence
        ]
    missing = failed_verdicts(results.plan)
    if missing:
        reasons.append(
            f"{sum(missing.values())} verdicts failed in {len(missing)} audits and count as missing"
            "; `make retry` has the next run ask for them again"
        )
    return "\n".join([*layout(rows), *([""] if reasons else []), *reasons])
