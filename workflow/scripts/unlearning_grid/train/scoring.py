"""The reward function that TRL calls, and what it leaves on disk."""

from collections.abc import Callable, Sequence
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.rewards.base import Reward
from unlearning_grid.runtime.job import Interrupted, Job
from unlearning_grid.train import processes
from unlearning_grid.train.rollouts import RolloutStore, active_rate, groups_of, rollout_rows


class RolloutScorer:
    """Scores the completions of a rollout and records them, once per rollout.

    Every process of a run scores its own completions; the first one writes all of them.

    Args:
        ends: token ids that end a turn.
        save_before_rollout: called in every process before an outage is raised in any of them.
    """

    def __init__(
        self,
        job: Job,
        reward: Reward,
        store: RolloutStore,
        ends: Sequence[int],
        save_before_rollout: Callable[[], None],
    ) -> None:
        self.job = job
        self.reward = reward
        self.store = store
        self.ends = frozenset(ends)
        self.save_before_rollout = save_before_rollout
        self.__name__ = reward.name.replace("-", "_")  # what TRL calls it in the metrics

    def __call__(
        self,
        completions: list[str],
        completion_ids: list[list[int]],
        prompt_id: list[str],
        question: list[str],
        trainer_state: Any,
        log_metric: Callable[[str, float], None],
        **_: Any,
    ) -> list[float | None]:
        """Rewards of this process's completions, None where missing.

        Raises UserError when more rewards are missing than grpo.max_missing_share allows, and what
        the reward raises, in every process.
        """
        scored = self._score(prompt_id, question, completions, completion_ids)
        everywhere = processes.gather(scored)
        settings, step = self.job.settings, trainer_state.global_step
        rollout = step // settings["num_iterations"]
        rows = list(rollout_rows(rollout, step, everywhere, settings["num_generations"]))
        if processes.is_main():
            self.job.checkpoint_guard()
            self.store.write(rollout, rows)
        rewards = [row["reward"] for row in rows]
        missing = rewards.count(None) / len(rewards)
        log_metric("missing_reward_share", missing)
        if missing > settings["max_missing_share"]:
            self.save_before_rollout()
            raise UserError(
                f"{missing:.0%} of the rewards of rollout {rollout} are missing, more than "
                "grpo.max_missing_share allows; see the judge's warnings in the log. Run again "
                "to go on with this very rollout"
            )
        rate = active_rate(groups_of(rewards, settings["num_generations"]))
        log_metric("active_group_rate", float("nan") if rate is None else rate)
        return [row["reward"] for row in scored]

    def _score(
        self,
        prompt_ids: Sequence[str],
        questions: list[str],
        completions: list[str],
        token_ids: Sequence[Sequence[int]],
    ) -> list[dict[str, Any]]:
        scores, problem = None, None
        try:
            scores = self.reward.score(questions, completions)
        except (Interrupted, UserError) as error:
            problem = error
        problems = [found for found in processes.gather([problem]) if found is not None]
        if problems:
            self.save_before_rollout()
            raise problems[0]
        assert scores is not None
        return [
            {
                "prompt_id": prompt_ids[index],
                "prompt": questions[index],
                "completion": completions[index],
                "tokens": len(ids),
                "finish_reason": "stop" if ids and ids[-1] in self.ends else "length",
                "reward": scores.values[index],
                **{name: values[index] for name, values in scores.columns.items()},
            }
            for index, ids in enumerate(token_ids)
        ]
