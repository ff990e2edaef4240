"""R2-Rubric: an LLM judge's five booleans mapped to a reward (study, table 5)."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from unlearning_grid.judge.labels import RUBRIC
from unlearning_grid.rewards.base import (
    DETECTOR_THRESHOLD,
    RewardContext,
    Scores,
    refusal_probabilities,
    require,
)


def rubric_reward(verdict: Mapping[str, bool]) -> float:
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
        self._workers = context.judge_workers

    def score(self, prompts: list[str], completions: list[str]) -> Scores:
        """Values of table 5; None where the judge gave no verdict.

        Columns: refusal_probability; judged (sent to the judge: a refusal is not); the five RUBRIC,
        None for a refusal and for a missing verdict.
        """
        refusal = refusal_probabilities(self._detector, completions)
        judged = [p < DETECTOR_THRESHOLD for p in refusal]
        pairs = list(zip(prompts, completions, strict=True))
        verdicts = self._verdicts([pair for pair, sent in zip(pairs, judged, strict=True) if sent])
        found = [verdicts[pair] if sent else None for pair, sent in zip(pairs, judged, strict=True)]
        values = [_value(sent, verdict) for sent, verdict in zip(judged, found, strict=True)]
        fields = {
            name: [None if verdict is None else verdict[name] for verdict in found]
            for name in RUBRIC
        }
        return Scores(values, {"refusal_probability": refusal, "judged": judged, **fields})

    def _verdicts(
        self, pairs: list[tuple[str, str]]
    ) -> dict[tuple[str, str], Mapping[str, bool] | None]:
        """One call for each distinct pair, up to `judge_workers` at once."""
        distinct = list(dict.fromkeys(pairs))
        if self._workers <= 1:
            return {pair: self._judge(*pair) for pair in distinct}
        with ThreadPoolExecutor(self._workers) as pool:
            found = list(pool.map(lambda pair: self._judge(*pair), distinct))
        return dict(zip(distinct, found, strict=True))


def _value(judged: bool, verdict: Mapping[str, bool] | None) -> float | None:
    if not judged:
        return 0.0
    return None if verdict is None else rubric_reward(verdict)
