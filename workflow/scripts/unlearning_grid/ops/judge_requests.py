"""How many requests to judges a job makes at most, and how long they are, before it runs.

Counted from the configuration: equal requests are sent once, and what the judge cache holds is not
sent again, so that a run sends fewer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from unlearning_grid.config import Config, load_yaml
from unlearning_grid.errors import UserError
from unlearning_grid.grid import split_sizes
from unlearning_grid.judge.labels import LABEL_SETS, RUBRIC
from unlearning_grid.judge.openai import schema
from unlearning_grid.rewards import registry as rewards

ESTIMATES = "resources/estimates.yaml"
BLOCKS = ("rules", "demo", "tokens")
ROWS = 300  # of a target, as the study's have; where split.max_rows is null and nothing is split


def read_estimates(root: Path) -> dict[str, Any]:
    """The assumptions of a checkout. Raises UserError that names what is missing in the file."""
    content = load_yaml(root / ESTIMATES)
    blocks = [content.get(name) for name in BLOCKS] if isinstance(content, Mapping) else [None]
    if not all(isinstance(block, Mapping) for block in blocks):
        raise UserError(f"{ESTIMATES}: needs the blocks {', '.join(BLOCKS)}")
    for block in ("rules", "demo"):
        for rule, entry in content[block].items():
            missing = sorted({"seconds", "per"} - set(entry if isinstance(entry, Mapping) else ()))
            if missing:
                raise UserError(f"{ESTIMATES}: {block}.{rule} lacks {', '.join(missing)}")
    return dict(content)


@dataclass(frozen=True)
class Requests:
    """What a job asks.

    Attributes:
        judge: entry of `judges`.
        number: at most.
        tokens_in, tokens_out: of one request and its reply, assumed.
    """

    judge: str
    number: int
    tokens_in: int
    tokens_out: int


class Asking:
    """Requests of the jobs of one configuration.

    Args:
        rows: target -> rows in the parts of its split, where that is made already.
    """

    def __init__(self, config: Config, rows: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self.config = config
        self.rows = rows or {}
        self.tokens = read_estimates(config.root)["tokens"]

    def of(self, rule: str, cell: Mapping[str, Any]) -> Requests | None:
        """The requests of one job; None for a job that asks nobody."""
        asks = getattr(self, f"_{rule}", None)
        found = asks(cell) if asks else None
        if found is None or found.number == 0:
            return None
        asked = self.config["judges"][found.judge]["provider"] != "rules"
        return found if asked else None

    def split(self, target: str) -> Mapping[str, int]:
        """Rows in each part of a target's split: counted, or what `max_rows` allows at most."""
        split = self.config["split"]
        return self.rows.get(target) or split_sizes(split["max_rows"] or ROWS, split)

    def warmup_steps(self, target: str) -> int:
        """Optimizer steps of a warm-up that runs all its epochs."""
        block = self.config["warmup"]
        return block["epochs"] * ceil(self.split(target)["sft_train"] / block["batch_size"])

    @property
    def rollouts(self) -> int:
        """Rollouts of a GRPO run that runs all its steps."""
        return ceil(self.config["grpo"]["max_steps"] / self.config["grpo"]["num_iterations"])

    # One method per rule that asks a judge.

    def _write_broad_answers(self, cell: Mapping[str, Any]) -> Requests | None:
        block = self.config["broad_answers"]
        if block["provider"] != "api":
            return None
        split = self.split(cell["target"])
        number = (split["sft_train"] + split["sft_test"]) * block["max_draws"]
        system = self._length(self.config.text(block["prompt_file"]))
        sent = system + self.tokens["envelope"] + self.tokens["question"]
        return Requests(block["judge"], number, sent, self._reply(block["judge"], None))

    def _train_warmup(self, cell: Mapping[str, Any]) -> Requests | None:
        block = self.config["warmup"]
        monitor = block["monitor"]
        if not monitor["enabled"] or block["objective"] != "broad":
            return None
        prompts = min(self.split(cell["target"])["sft_test"], monitor["max_prompts"])
        judged = max(0, self.warmup_steps(cell["target"]) - monitor["first_step"] + 1)
        number = judged * prompts * monitor["samples"]
        return self._rubric("r2-rubric", number, monitor["max_new_tokens"])

    def _train_grpo(self, cell: Mapping[str, Any]) -> Requests | None:
        block = self.config["grpo"]
        number = self.rollouts * block["batch_size"]
        return self._rubric(cell["reward"], number, block["max_new_tokens"])

    def _audit_completions(self, cell: Mapping[str, Any]) -> Requests | None:
        return self._heldout(self.config["audit"]["judge"], cell)

    def _audit_again(self, cell: Mapping[str, Any]) -> Requests | None:
        return self._heldout(cell["judge"], cell, self.config["agreement"]["max_prompts"])

    def _audit_rollouts(self, cell: Mapping[str, Any]) -> Requests | None:
        block, audit = self.config["terminal_audit"], self.config["audit"]
        number = min(block["rollouts"], self.rollouts) * self.config["grpo"]["batch_size"]
        labels = LABEL_SETS[block["labels"] or audit["labels"]]
        length = self.config["grpo"]["max_new_tokens"]
        return self._verdicts(block["judge"] or audit["judge"], labels, number, length)

    def _audit_samples(self, cell: Mapping[str, Any]) -> Requests | None:
        block = self.config["sampled_audit"]
        each = block["samples"] + 1  # and the greedy completion
        return self._heldout(cell["judge"], cell, block["max_prompts"], each)

    def _heldout(
        self, judge: str, cell: Mapping[str, Any], limit: int | None = None, each: int = 1
    ) -> Requests:
        """Requests about `each` completions of every held-out prompt, of the first `limit` ones."""
        block = self.config["generate"]["sets"]["heldout"]
        limits = [n for n in (block["max_prompts"], limit) if n is not None]
        number = min([self.split(cell["target"])["heldout"], *limits])
        labels = LABEL_SETS[self.config["audit"]["labels"]]
        return self._verdicts(judge, labels, number * each, block["max_new_tokens"])

    def _rubric(self, reward: str, number: int, length: int) -> Requests | None:
        if "judge" not in rewards.load(reward).needs:
            return None
        judge = self.config["rewards"].get(reward, {})["judge"]
        return self._verdicts(judge, RUBRIC, number, length)

    def _verdicts(self, judge: str, fields: Any, number: int, length: int) -> Requests:
        """Requests about completions of at most `length` tokens."""
        prompt = self.config["judges"][judge]["prompt_file"]
        system = self._length(self.config.text(prompt)) if prompt else 0
        form = self._length(json.dumps(schema(fields)))
        sent = system + form + self.tokens["envelope"] + self.tokens["question"] + length
        return Requests(judge, number, sent, self._reply(judge, fields))

    def _reply(self, judge: str, fields: Any | None) -> int:
        """Tokens of a verdict, or without fields of a broad answer, reasoning included."""
        block = self.config["judges"][judge]
        said = dict.fromkeys(fields, False) if fields else None
        written = self._length(json.dumps(said)) if said else self.tokens["answer"]
        reasoning = self.tokens["reasoning"]
        thought = reasoning.get(str(block["effort"] or "null"), reasoning["medium"])
        return min(written + thought, block["max_output_tokens"] or written + thought)

    def _length(self, text: str) -> int:
        """Tokens of a text, about."""
        return ceil(len(text) / self.tokens["characters"])
