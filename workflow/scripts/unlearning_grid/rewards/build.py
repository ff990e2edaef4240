"""A reward with everything it needs, from its block in a spec and the job's inputs."""

from collections.abc import Mapping
from typing import Any

from unlearning_grid.judge.registry import JUDGES
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
        detector=load_detector(job, block["detector"]) if "detector" in block else None,
        judge=judge.rubric if judge else None,
        judge_workers=judge.workers if judge else 1,
    )
    return load_object(block["class"])(dict(block["settings"]), context)


def load_detector(job: Job, block: Mapping[str, Any]) -> Any:
    """The refusal detector: pinned on the hub, or trained by a rule (an input)."""
    kind = load_object("unlearning_grid.models.detector:RefusalDetector")
    device = load_object("unlearning_grid.models.load:device")()
    if "repo" in block:
        return kind.load(block["repo"], revision=block["revision"], device=device)
    return kind.load(job.artefact("detector", "model"), device=device)


def make_judge(job: Job, block: Mapping[str, Any], subject: str) -> Any:
    """The judge that a spec's `judge` block describes; what a rules judge knows is an input."""
    factory = load_object(JUDGES[block["provider"]])
    known = job.artefact("knowledge", "knowledge.json") if "knowledge" in job.inputs else None
    return factory(block, subject, known)
