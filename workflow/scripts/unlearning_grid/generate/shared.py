"""Stage: what a base model completes for every target, in one start of the engine.

An engine takes longer to start than a target's prompts to complete. A trained policy is evaluated
on one target; a base model on all, and its rows can all be made at once. They are put where the
stages of the single evaluations keep theirs, row by row and under the same identity, so that those
find them, and make themselves what is missing: they need this stage for speed only.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unlearning_grid.generate.greedy import greedy_parts
from unlearning_grid.generate.rows import Engine, Part, completed
from unlearning_grid.generate.sampled import sampled_part
from unlearning_grid.models.policy import Policy
from unlearning_grid.paths import stage_dir
from unlearning_grid.runtime.atomic import write_json
from unlearning_grid.runtime.job import Job

PARTS = {"completions": greedy_parts, "samples": lambda job, policy: [sampled_part(job, policy)]}


def generate(job: Job) -> dict[str, Any]:
    """Write "rows" (JSON): for each stage and target how many rows there are.

    Inputs: splits and prompts (one manifest per target, in the order of settings["targets"]), model
    (a built one). Settings: policy, targets, stages ({stage: the spec of its own rule}).
    """
    views = [
        (stage, target, _view(job, stage, spec, number))
        for stage, spec in job.settings["stages"].items()
        for number, target in enumerate(job.settings["targets"])
    ]
    policy = Policy(views[0][2])
    parts = [PARTS[stage](view, policy) for stage, _, view in views]
    engine = Engine(views[0][2], policy, [part for some in parts for part in some])
    counts: dict[str, dict[str, int]] = {}
    for (stage, target, view), some in zip(views, parts, strict=True):
        completed(view, engine, some)
        counts.setdefault(stage, {})[target] = sum(len(part.rows) for part in some)
        _tell(job, counts, parts)
    write_json(job.outputs["rows"], counts)
    return {"rows": sum(sum(found.values()) for found in counts.values())}


def _view(job: Job, stage: str, spec: Mapping[str, Any], number: int) -> Job:
    """The job of one evaluation's own stage: same rows, same place, this job's lease."""
    inputs = {"split": job.inputs["splits"][number], "prompts": job.inputs["prompts"][number]}
    if "model" in job.inputs:
        inputs["model"] = job.inputs["model"]
    target = job.settings["targets"][number]
    folder = stage_dir(stage, job.settings["policy"], target)
    return replace(job, spec=spec, inputs=inputs, work=Path(folder) / "work" / "shared")


def _tell(job: Job, counts: Mapping[str, Mapping[str, int]], parts: list[list[Part]]) -> None:
    total = sum(len(part.rows) for some in parts for part in some)
    done = sum(sum(found.values()) for found in counts.values())
    job.progress(done, total, "completions")
