"""When a training stops before its end, as functions of numbers."""


def warmup_fires(share: float | None, threshold: float, broad: bool) -> bool:
    """Whether a share of wanted completions stops the warm-up; an unknown one does not.

    Broad: above the threshold (paper Table 6). Refusal: when it is reached (appendix D.3.1).
    """
    if share is None:
        return False
    return share > threshold if broad else share >= threshold


def no_learning_step(rollouts: int, reuse: int, timing: str) -> int:
    """Optimizer steps after which the no-learning rule judges the first epoch's rollouts.

    Timing `before-update`: before the next rollout. `paper`: one rollout and one update later,
    since the study's callback waited for the first record of the second epoch.
    """
    return rollouts * reuse + (timing == "paper")
