"""Where results lie, relative to the working directory. Rules hold the same paths literally."""

from pathlib import Path

RESULTS = Path("results")


def policy_dir(policy: str) -> Path:
    """Folder of a trained policy (warm-up or GRPO)."""
    return RESULTS / policy


def stage_dir(stage: str, policy: str, target: str) -> Path:
    """Folder of one stage (completions, audit, rwku) of an evaluation."""
    return RESULTS / stage / policy / "on" / target


def data_dir(target: str, part: str) -> Path:
    """Folder of a target's rows/questions, rows/probes, split, broad or knowledge."""
    return RESULTS / "data" / target / part
