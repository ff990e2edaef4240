"""A reward with everything it needs, from its block in a spec and the job's inputs."""

import json
from collections.abc import Mapping
from typing import Any

from unlearning_grid.judge.base import Judge, JudgeContext
from unlearning_grid.judge.registry import JUDGES
from unlearning_grid.paths import JUDGE_CACHE
from unlearning_grid.rewards.base import Reward, RewardContext
from unlearning_grid.runtime.job import Job
from unlearning_grid.runtime.objects import load_object


def build_reward(job: Job, block: Mapping[str, Any]) -> Reward:
    """The reward that a spec's `reward` block describes.

    The detector and the judge are imported by name, so that a reward's code digest holds only what
    this reward uses.
    """
    judge = make_judge(job, block["judge"], block["subject"]) if "judge" in block else None
    context = RewardContext(
        subject=block["subject"],
        terms=block.get("terms", []),
        hard_terms=block.get("hard_terms", []),
        term_weights=_term_weights(job),
        detector=load_detector(job, block["detector"]) if "detector" in block else None,
        judge=judge.rubric if judge else None,
    )
    return load_object(block["class"])(dict(block["settings"]), context)


def load_detector(job: Job, block: Mapping[str, Any]) -> Any:
    """The refusal detector, imported by name as above."""
    return load_object("unlearning_grid.models.detector:load_detector")(job, block)


def make_judge(job: Job, block: Mapping[str, Any], subject: str, replicate: int = 0) -> Judge:
    """The judge that a spec's `judge` block describes; what a rules judge knows is an input.

    `replicate`: another number than 0 asks the same questions anew.
    """
    factory = load_object(JUDGES[block["provider"]])
    known = job.artefact("knowledge", "knowledge.json") if "knowledge" in job.inputs else None
    context = JudgeContext(
        subject=subject,
        knowledge=known,
        requests_at_once=job.judge_requests,
        replicate=replicate,
        cache=JUDGE_CACHE,
        stop_requested=lambda: job.stop_requested,
    )
    return factory(block, context)


def _term_weights(job: Job) -> Mapping[str, float] | None:
    if "weights" not in job.inputs:
        return None
    return json.loads(job.artefact("weights", "weights.json").read_text(encoding="utf-8"))
