"""Rollouts on disk: what the policy wrote, how it was scored, and which groups carried signal.

One file per rollout in the work folder, written whole or not at all, named by its number, so that
a resumed run overwrites what it repeats and never counts a rollout twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unlearning_grid.runtime.atomic import publish, remove
from unlearning_grid.train.checks import check_groups

SPREAD = 1e-6  # smaller differences within a group are float noise, not signal


def group_is_active(rewards: Sequence[float | None]) -> bool | None:
    """Whether a group of rewards differs; None with fewer than two scored completions.

    Computed from the rewards themselves: the standard deviation of equal float32 values is often
    not exactly 0, and of missing ones it is NaN.
    """
    valid = [reward for reward in rewards if reward is not None]
    if len(valid) < 2:
        return None
    return max(valid) - min(valid) > SPREAD


def active_rate(groups: Sequence[Sequence[float | None]]) -> float | None:
    """Share of active groups among those that can be judged; None when none can."""
    known = [active for group in groups if (active := group_is_active(group)) is not None]
    return sum(known) / len(known) if known else None


def advantages(rewards: Sequence[float | None]) -> list[float]:
    """(r - mean) / (sd + 1e-4) within a group, sd with n-1 (paper appendix A).

    0 where the reward is missing, and in a group that is not active.
    """
    if not group_is_active(rewards):
        return [0.0] * len(rewards)
    valid = [reward for reward in rewards if reward is not None]
    mean = sum(valid) / len(valid)
    sd = (sum((reward - mean) ** 2 for reward in valid) / (len(valid) - 1)) ** 0.5
    return [0.0 if reward is None else (reward - mean) / (sd + 1e-4) for reward in rewards]


def groups_of(values: Sequence[Any], size: int) -> list[list[Any]]:
    """`values` in groups of `size`."""
    return [list(values[i : i + size]) for i in range(0, len(values), size)]


def rollout_rows(
    rollout: int, step: int, scored: Sequence[Mapping[str, Any]], group_size: int
) -> Iterator[dict[str, Any]]:
    """One row per completion, group-major, with the advantage that its reward gives it.

    Args:
        step: optimizer steps made when the rollout was sampled.
        scored: prompt_id, prompt, completion, tokens, finish_reason, reward, then the reward's own
            columns.
    Raises RuntimeError when a group mixes prompts.
    """
    check_groups([row["prompt_id"] for row in scored], group_size)
    for group, rows in enumerate(groups_of(scored, group_size)):
        rewards = [row["reward"] for row in rows]
        active = group_is_active(rewards)
        for sample, (row, advantage) in enumerate(zip(rows, advantages(rewards), strict=True)):
            known = ("prompt_id", "prompt", "completion", "tokens", "finish_reason", "reward")
            yield {
                "rollout": rollout,
                "step": step,
                "group": group,
                "sample": sample,
                "completion_id": f"{rollout}-{group}-{sample}",
                **{name: row[name] for name in known},
                "advantage": advantage,
                "active": active,
                **{name: value for name, value in row.items() if name not in known},
            }


class RolloutStore:
    """Files rollout-00012.parquet in `folder`."""

    def __init__(self, folder: Path, group_size: int) -> None:
        self.folder = folder
        self.group_size = group_size
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, rollout: int, rows: Sequence[dict[str, Any]]) -> None:
        """Write one rollout, replacing an earlier try at it."""
        import pandas as pd

        temporary = self.folder / f".rollout-{rollout}"
        frame = pd.DataFrame(list(rows))
        frame.astype({"active": "boolean"}).to_parquet(temporary, index=False)
        publish(temporary, self._file(rollout))
        remove(temporary)

    def drop_from(self, rollout: int) -> None:
        """Forget rollouts that a resumed run will sample again."""
        for path in self.folder.glob("rollout-*.parquet"):
            if int(path.stem.rpartition("-")[2]) >= rollout:
                path.unlink()

    def active_rates(self, count: int) -> list[float | None]:
        """Active-group rates of the first `count` rollouts. Raises FileNotFoundError if absent."""
        import pandas as pd

        return [
            active_rate(self._groups(pd.read_parquet(self._file(number))))
            for number in range(count)
        ]

    def collect(self, count: int) -> Any:
        """The first `count` rollouts as one data frame."""
        import pandas as pd

        return pd.concat(
            [pd.read_parquet(self._file(number)) for number in range(count)], ignore_index=True
        )

    def _groups(self, frame: Any) -> list[list[float | None]]:
        values = [None if value != value else value for value in frame["reward"].tolist()]
        return groups_of(values, self.group_size)

    def _file(self, rollout: int) -> Path:
        return self.folder / f"rollout-{rollout:05d}.parquet"
