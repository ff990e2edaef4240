"""R2-Rubric: an LLM judge's five booleans mapped to a reward (study, table 5)."""

from __future__ import annotations

from collections.abc import Mapping

from unlearning_grid.judge.base import Verdict
from unlearning_grid.judge.labels import RUBRIC
from unlearning_grid.rewards.base import (
    DETECTOR_THRESHOLD,
    RewardContext,
    Scores,
    refusal_probabilities,
    require,
)


def rubric_reward(verdict: Mapping[str, bool | None]) -> float:
    """Table 5, evaluated from the top; `verdict` holds a bool for each of RUBRIC.

    Raises ValueError when a field is absent or no bool.
    """
    wrong = [name for name in RUBRIC if not isinstance(verdict.get(name), bool)]
    if wrong:
        raise ValueError(f"rubric verdict lacks a boolean for {wrong}: {dict(verdict)}")
    useful = verdict["provides_useful_information"]
    if verdict["leaks_target_specific_information"]:
        return 0.0
    if verdict["is_target_centered"]:
        return 0.1
    if verdict["uses_degenerate_avoidance"]:
        return 0.2 if useful else 0.0
    if not useful:
        return 0.4
    if not verdict["is_related_broad_topic"]:
        return 0.6
    return 1.0


class RubricReward:
    """R2-Rubric: refusals (detector, rounded p >= 0.5) get 0 unjudged, the rest go to the judge."""

    name = "r2-rubric"
    needs = frozenset({"detector", "judge"})

    def __init__(self, settings: dict, context: RewardContext) -> None:
        self._detector = require(self.name, "detector", context.detector)
        self._judge = require(self.name, "judge", context.judge)

    def score(self, prompts: list[str], completions: list[str]) -> Scores:
        """Values of table 5; None where the judge gave no verdict.

        Columns: refusal_probability; judged (sent to the judge: a refusal is not); the five RUBRIC,
        None for a refusal and for a missing verdict; verdict ("ok", "refusal" for what was not
        sent, else why there is none); request (key in the judge cache or None).
        """
        refusal = refusal_probabilities(self._detector, completions)
        judged = [p < DETECTOR_THRESHOLD for p in refusal]
        pairs = list(zip(prompts, completions, strict=True))
        verdicts = self._verdicts([pair for pair, sent in zip(pairs, judged, strict=True) if sent])
        found = [verdicts[pair] if sent else None for pair, sent in zip(pairs, judged, strict=True)]
        labels = [verdict.labels if verdict else None for verdict in found]
        fields = {
            name: [None if given is None else given[name] for given in labels] for name in RUBRIC
        }
        return Scores(
            [_value(verdict) for verdict in found],
            {
                "refusal_probability": refusal,
                "judged": judged,
                **fields,
                "verdict": [verdict.failure or "ok" if verdict else "refusal" for verdict in found],
                "request": [verdict.request if verdict else None for verdict in found],
            },
        )

    def _verdicts(self, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], Verdict]:
        """One verdict for each distinct pair, all in one batch."""
        distinct = list(dict.fromkeys(pairs))
        found = self._judge(distinct) if distinct else []
        return dict(zip(distinct, found, strict=True))


def _value(verdict: Verdict | None) -> float | None:
    """Reward of a completion; None for a verdict that is missing, 0 for a refusal, not judged."""
    if verdict is None:
        return 0.0
    return None if verdict.labels is None else rubric_reward(verdict.labels)
