"""Stage: what happened in each training run."""

from typing import Any

from unlearning_grid.grid import parse_policy
from unlearning_grid.paths import policy_dir
from unlearning_grid.runtime.job import Job
from unlearning_grid.tables.files import write_table
from unlearning_grid.tables.results import Results, open_results

FACTS = ("kind", "size", "target", "init", "reward", "seed")
WARMUP = ("examples", "monitor_examples", "stopped_by_rule")
GRPO = (
    "rollouts",
    "prompts",
    "completions",
    "missing_rewards",
    "first_epoch_rollouts",
    "first_epoch_active_rate",
    "no_learning_threshold",
    "reward_first",
    "reward_last",
    "kl_first",
    "kl_last",
    "kl_reference",
    "trainable_parameters",
)
INSTRUMENTS = ("judge", "judge_prompt", "detector")
COUNTS = ("seed", "steps", "planned_steps", "examples", "monitor_examples", *GRPO[:5], GRPO[-1])


def build(job: Job) -> dict[str, Any]:
    """Write "table" and "csv"."""
    frame = training_table(open_results(job.inputs["plan"]))
    write_table(frame, job.outputs["table"], job.outputs["csv"])
    return {"runs": len(frame)}


def training_table(results: Results) -> Any:
    """One row per warm-up and per cell: steps, stop rules with their evidence, reward, KL."""
    import pandas as pd

    warmups = dict.fromkeys(c["warmup"] for c in results.cells if c["warmup"])
    rows = []
    for policy in [*warmups, *(cell["policy"] for cell in results.cells)]:
        facts = parse_policy(policy)
        outcome = results.outcome(policy) or {}
        rule = outcome.get("rule") or {}
        judged = results.reward_instruments(policy)
        status = results.status_of.get(policy) or _warmup_status(results, policy, outcome)
        rows.append(
            {
                **{name: facts.get(name) for name in FACTS},
                "policy": policy,
                "status": status,
                "steps": outcome.get("steps"),
                "planned_steps": outcome.get("planned_steps"),
                **{name: outcome.get(name) for name in WARMUP},
                "monitor_share": rule.get("share"),
                "monitor_threshold": rule.get("threshold"),
                **{name: outcome.get(name) for name in GRPO},
                **{name: judged.get(name) for name in INSTRUMENTS},
            }
        )
    frame = pd.DataFrame(rows)
    for name in COUNTS:
        frame[name] = frame[name].astype("Int64")
    frame["stopped_by_rule"] = frame["stopped_by_rule"].astype("boolean")
    return frame


def _warmup_status(results: Results, policy: str, outcome: dict[str, Any]) -> str:
    return outcome.get("status") or results.state(policy_dir(policy)).status
