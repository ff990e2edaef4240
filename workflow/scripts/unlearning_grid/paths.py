"""Where results lie, relative to the working directory. Rules hold the same paths literally."""

from pathlib import Path

RESULTS = Path("results")

REFUSAL_DETECTORS = RESULTS / "tables" / "refusal_detectors"

JUDGE_CACHE = RESULTS / "judge_cache"
"""Replies of judges and teachers, shared by all jobs of a working directory; no declared output."""


def policy_dir(policy: str) -> Path:
    """Folder of a trained policy (warm-up or GRPO)."""
    return RESULTS / policy


def stage_dir(stage: str, policy: str, target: str) -> Path:
    """Folder of one stage (completions, likelihoods, audit, rwku) of an evaluation."""
    return RESULTS / stage / policy / "on" / target


def opinion_stage(judge: str, replicate: int | str) -> str:
    """Stage name of a further opinion, for `stage_dir`."""
    return f"opinions/{judge}/r{replicate}"


def sampled_stage(judge: str) -> str:
    """Stage name of a judge's labels of sampled completions, for `stage_dir`."""
    return f"sampled/{judge}"


def base_rows_dir(size: str) -> Path:
    """Folder of what one start of the engine made for a base model on all targets."""
    return RESULTS / "base_rows" / size


def prompts_dir(size: str, target: str) -> Path:
    """Folder of RWKU's sets as one size is asked them about a target."""
    return RESULTS / "prompts" / size / "on" / target


def data_dir(target: str, part: str) -> Path:
    """Folder of one part of a target's data: questions, probes, benchmark, split, broad, …."""
    return RESULTS / "data" / target / part
