"""What is there for a plan, and whether it may be counted.

A result counts when its spec is the one that the plan expects and when everything it was made from
is what lies there now. A stale result is refused (strict) or counted as not run (partial), never
averaged in.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.judge.names import instruments
from unlearning_grid.paths import policy_dir, stage_dir
from unlearning_grid.runtime import attempts, manifest
from unlearning_grid.runtime.atomic import read_json
from unlearning_grid.runtime.lease import is_running

CURRENT, FAILED, NOT_RUN = "current", "failed", "not-run"


@dataclass(frozen=True)
class State:
    """State of one planned folder: current, failed or not-run, with evidence for the latter two."""

    status: str
    evidence: str | None = None
    accepted: str | None = None


@dataclass
class Results:
    """Results of a plan below the working directory.

    Args:
        plan: as written by the stage write_plan.
        strict: raise on the first result that does not count, in place of leaving it out.
    """

    plan: Mapping[str, Any]
    strict: bool = True
    _states: dict[str, State] = field(default_factory=dict)
    _contents: dict[str, str | None] = field(default_factory=dict)
    _accepted: dict[str, list[str]] = field(default_factory=dict)

    @cached_property
    def cells(self) -> list[dict[str, Any]]:
        """The cells of the grid with their status, in the order of the plan."""
        return [self._cell(cell) for cell in self.plan["cells"]]

    @cached_property
    def status_of(self) -> dict[str, str]:
        """Policy id of a cell -> learned, no-learning, failed or not-run."""
        return {cell["policy"]: cell["status"] for cell in self.cells}

    def state(self, folder: Path) -> State:
        """State of a planned folder. In strict mode raises UserError unless it is current."""
        state = self._state(folder.as_posix())
        if self.strict and state.status != CURRENT:
            why = f" ({state.evidence})" if state.evidence else ""
            raise UserError(
                f"{folder.as_posix()}: {state.status}{why}; run the grid again (delete that folder "
                "if Snakemake finds nothing to do), or build `partial` to see what is there"
            )
        return state

    def _state(self, name: str) -> State:
        if name not in self._states:
            self._states[name] = self._look(Path(name))
        return self._states[name]

    def outcome(self, policy: str) -> dict[str, Any] | None:
        """outcome.json of a trained policy that counts, else None."""
        if self.state(policy_dir(policy)).status != CURRENT:
            return None
        return json.loads((policy_dir(policy) / "outcome.json").read_text(encoding="utf-8"))

    def reward_instruments(self, policy: str) -> dict[str, str | None]:
        """Judge, prompt and detector that a trained policy was scored with; {} where none was."""
        if policy.startswith("base/") or self.state(policy_dir(policy)).status != CURRENT:
            return {}
        run = read_json(policy_dir(policy) / manifest.RUN_NAME) or {}
        settings = run["spec"]["settings"]
        reward = settings.get("reward") or (settings.get("monitor") or {}).get("reward")
        return instruments(reward) if reward else {}

    def file(self, stage: str, policy: str, target: str, name: str) -> Path | None:
        """A file of an evaluation's stage (completions, audit, rwku) that counts, else None."""
        folder = stage_dir(stage, policy, target)
        if self.state(folder).status != CURRENT:
            return None
        return manifest.check_output(folder / manifest.NAME, name)

    def accepted(self, folder: Path) -> list[str]:
        """ "stage: reason" of every accepted edit that a result depends on, its own ones included.

        [] for a result that does not count.
        """
        if self.state(folder).status != CURRENT:
            return []
        name = folder.as_posix()
        if name not in self._accepted:
            run = read_json(folder / manifest.RUN_NAME) or {}
            own = [f"{run['spec']['stage']}: {e['reason']}" for e in run.get("accepted", [])]
            inputs = manifest.read(folder / manifest.NAME)["inputs"]
            upstream = [Path(path).parent for path in inputs]
            planned = [one for one in upstream if one.as_posix() in self.plan["expected"]]
            below = [note for one in planned for note in self.accepted(one)]
            self._accepted[name] = list(dict.fromkeys(below + own))
        return self._accepted[name]

    def _cell(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        state = self.state(policy_dir(cell["policy"]))
        outcome = self.outcome(cell["policy"]) or {}
        status = outcome.get("status") or state.status
        evidence = state.evidence
        if status == "no-learning":
            evidence = (
                f"mean active-group rate {outcome['first_epoch_active_rate']:.3f} over the first "
                f"{outcome['first_epoch_rollouts']} rollouts, at most "
                f"{outcome['no_learning_threshold']}; stopped at step {outcome['steps']}"
            )
        elif status == NOT_RUN and cell["warmup"] and evidence is None:
            start = self.state(policy_dir(cell["warmup"]))
            if start.status == FAILED:
                evidence = f"its warm-up failed: {start.evidence}"
        return {**cell, "status": status, "evidence": evidence}

    def _look(self, folder: Path) -> State:
        run = read_json(folder / manifest.RUN_NAME)
        described = read_json(folder / manifest.NAME)
        expected = self.plan["expected"][folder.as_posix()]
        if not run or not described:
            return _unfinished(folder, expected)
        if run["spec_digest"] != expected:
            return State(NOT_RUN, "stale: made from another spec")
        for path, content in described["inputs"].items():
            if self._content(path) != content:
                return State(NOT_RUN, f"stale: made from another {path}")
            upstream = Path(path).parent.as_posix()
            if upstream in self.plan["expected"] and self._state(upstream).status != CURRENT:
                return State(NOT_RUN, f"stale: made from {upstream}, which is not current")
        notes = [entry["reason"] for entry in run.get("accepted", [])]
        return State(CURRENT, accepted="; ".join(notes) or None)

    def _content(self, path: str) -> str | None:
        if path not in self._contents:
            found = read_json(Path(path))
            self._contents[path] = manifest.content_digest(found) if found else None
        return self._contents[path]


def _unfinished(folder: Path, expected: str) -> State:
    """Failed with its reason, running, killed, or never tried."""
    if is_running(folder):
        return State(NOT_RUN, "running")
    failure = read_json(folder / attempts.FAILURE_NAME)
    if failure:
        reason = f"{failure['error']}: {failure['message']}"
        if failure["spec_digest"] != expected:
            return State(NOT_RUN, f"an older spec failed: {reason}")
        return State(FAILED, reason)
    if attempts.died_without_a_word(folder, expected):
        return State(FAILED, "killed: the last attempt started and left no word")
    return State(NOT_RUN)


def open_results(plan_manifest: Path, strict: bool = True) -> Results:
    """Results of the plan beside a manifest."""
    plan = json.loads((plan_manifest.parent / "plan.json").read_text(encoding="utf-8"))
    return Results(plan, strict)
