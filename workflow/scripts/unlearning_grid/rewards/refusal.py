"""R4-Refusal: the refusal probability itself, the contrastive endpoint (study, equation 12)."""

from __future__ import annotations

from unlearning_grid.rewards.base import RewardContext, Scores, refusal_probabilities, require


class RefusalReward:
    """R4-Refusal over the refusal detector."""

    name = "r4-refusal"
    needs = frozenset({"detector"})

    def __init__(self, settings: dict, context: RewardContext) -> None:
        self._detector = require(self.name, "detector", context.detector)

    def score(self, prompts: list[str], completions: list[str]) -> Scores:
        """Values round(p, 2); column refusal_probability holds the same."""
        refusal = refusal_probabilities(self._detector, completions)
        return Scores(list(refusal), {"refusal_probability": refusal})
