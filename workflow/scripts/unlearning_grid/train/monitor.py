"""The warm-up's sampled stop rule. Imports transformers: import it inside functions."""

import json
import logging
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

from unlearning_grid.errors import UserError
from unlearning_grid.models.chat import render
from unlearning_grid.models.sampling import generate
from unlearning_grid.rewards.base import DETECTOR_THRESHOLD
from unlearning_grid.rewards.build import build_reward
from unlearning_grid.runtime.atomic import read_json, write_json
from unlearning_grid.runtime.job import Job
from unlearning_grid.train.rules import warmup_fires

log = logging.getLogger(__name__)


class Monitor(TrainerCallback):
    """Samples the policy at each evaluation and stops when enough completions are as wanted.

    Objective broad: a share above the threshold has R2 = 1.0. Objective refusal: a share of at
    least the threshold has a refusal probability of at least 0.5 (paper Table 6, appendix D.3.1).
    The share is taken over scored completions; missing verdicts are counted beside it.
    """

    def __init__(
        self, job: Job, tokenizer: Any, prompts: Sequence[dict[str, Any]], trainer: Any
    ) -> None:
        self.settings = job.settings["monitor"]
        self.broad = job.settings["objective"] == "broad"
        self.seed = job.settings["seed"]
        self.tokenizer = tokenizer
        self.prompts = list(prompts)[: self.settings["max_prompts"]]
        self.trainer = trainer
        self.folder = job.work / "monitor"
        self.reward = build_reward(job, self.settings["reward"])
        self.fired = False
        self.last: dict[str, Any] = {}

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if state.global_step < self.settings["first_step"]:
            return control
        rows = self._sample(state.global_step)
        self.last = self._judge(state.global_step, rows)  # raises in an outage: nothing is kept
        write_json(self.folder / f"step-{state.global_step:05d}.json", rows)
        log.info("monitor at step %d: %s", state.global_step, json.dumps(self.last))
        self.trainer.log({"monitor/share": self.last["share"]})
        if self._stops(self.last):
            self.fired = True
            control.should_training_stop = True
        return control

    def stops(self) -> list[int]:
        """Steps at which the rule fired in an earlier, killed attempt of this run."""
        files = sorted(self.folder.glob("step-*.json"))
        seen = {int(path.stem.removeprefix("step-")): read_json(path) or [] for path in files}
        return [step for step, rows in seen.items() if self._stops(self._judge(step, rows))]

    def _stops(self, judged: dict[str, Any]) -> bool:
        return warmup_fires(judged["share"], judged["threshold"], self.broad)

    def _sample(self, step: int) -> list[dict[str, Any]]:
        prompts = [row["prompt"] for row in self.prompts]
        groups = generate(
            self.trainer.model,
            self.tokenizer,
            [render(self.tokenizer, prompt) for prompt in prompts],
            max_new_tokens=self.settings["max_new_tokens"],
            temperature=self.settings["temperature"],
            top_p=self.settings["top_p"],
            num_samples=self.settings["samples"],
            seed=self.seed + step,
            batch_size=8,
        )
        rows = [
            {
                "step": step,
                "prompt_id": row["prompt_id"],
                "sample": number,
                "completion": completion.text,
            }
            for row, group in zip(self.prompts, groups, strict=True)
            for number, completion in enumerate(group)
        ]
        asked = [prompt for prompt in prompts for _ in range(self.settings["samples"])]
        values = self.reward.score(asked, [row["completion"] for row in rows]).values
        return [row | {"value": value} for row, value in zip(rows, values, strict=True)]

    def _judge(self, step: int, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        scored = [row["value"] for row in rows if row["value"] is not None]
        missing = len(rows) - len(scored)
        if missing > self.settings["max_missing_share"] * len(rows):
            raise UserError(
                f"{missing} of {len(rows)} monitor verdicts are missing at step {step}, more than "
                "warmup.monitor.max_missing_share allows; see the judge's warnings in the log"
            )
        wanted = [v for v in scored if (v == 1.0 if self.broad else v >= DETECTOR_THRESHOLD)]
        return {
            "step": step,
            "share": len(wanted) / len(scored) if scored else None,
            "wanted": len(wanted),
            "scored": len(scored),
            "missing": missing,
            "threshold": self.settings["threshold"],
        }

    def evidence(self) -> dict[str, Any]:
        """The last judgement: step, share, counts, threshold."""
        return self.last

    def rows(self, steps: int) -> list[dict[str, Any]]:
        """Every sampled completion up to the run's last step."""
        files = sorted(self.folder.glob("step-*.json"))
        kept = [path for path in files if int(path.stem.removeprefix("step-")) <= steps]
        return [row for path in kept for row in read_json(path) or []]
