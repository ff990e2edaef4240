"""What the trainer computes, against the formulas of the paper's appendix A, written out here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from training_job import built, grpo_job, short
from unlearning_grid.train import grpo

pytestmark = [pytest.mark.xdist_group("training"), pytest.mark.usefixtures("one_thread")]

BETA, EPSILON, GROUP = 0.04, 0.2, 8


class Recorder:
    """Keeps what a trainer's updates were given and what they gave."""

    def __init__(self, trainer: Any) -> None:
        self.updates: list[dict[str, Any]] = []
        self.rewards: list[torch.Tensor] = []
        compute_loss, calculate = trainer._compute_loss, trainer._calculate_rewards

        def recorded_loss(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
            policy = plain_logps(model, inputs)
            loss = compute_loss(model, inputs)
            kept = {k: v.clone() for k, v in inputs.items() if isinstance(v, torch.Tensor)}
            self.updates.append({"policy": policy, "loss": loss.item(), **kept})
            return loss

        def recorded_rewards(*args: Any) -> torch.Tensor:
            rewards = calculate(*args)
            self.rewards.append(rewards[:, 0].clone())
            return rewards

        trainer._compute_loss = recorded_loss
        trainer._calculate_rewards = recorded_rewards


@dataclass
class Recorded:
    """A trained run: what its updates saw, its rollouts on disk, forward passes per update."""

    trainer: Any
    record: Recorder
    rows: Any
    passes: int


@torch.no_grad()
def plain_logps(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """Log-probabilities of the completions' tokens from the model's logits, (B, T)."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    places = (mask.cumsum(dim=1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=places).logits.float()
    logps = logits[:, :-1].log_softmax(dim=-1).gather(2, ids[:, 1:, None])[..., 0]
    return logps[:, -inputs["completion_ids"].shape[1] :]


@pytest.fixture(
    scope="module", params=[("cold", None), ("warm", 16)], ids=["cold", "warm-in-micro-batches"]
)
def recorded(
    micro: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Recorded:
    """Three rollouts of R0."""
    init, batch = request.param
    job = grpo_job(micro, tmp_path_factory.mktemp("formula"), init, micro_batch_size=batch)
    run, trainer = built(job)
    record = Recorder(trainer)
    trainer.train()
    return Recorded(trainer, record, run.store.collect(3), 64 // (batch or 64))


def test_loss_kl_and_advantages_are_those_of_the_paper(
    recorded: Recorded,
) -> None:
    trainer, record, passes = recorded.trainer, recorded.record, recorded.passes
    assert len(record.rewards) == 3
    assert len(record.updates) == 3 * 2 * passes
    logged = {line["step"]: line for line in trainer.state.log_history if "kl" in line}
    for step in range(6):
        parts = record.updates[step * passes : (step + 1) * passes]
        rollout = step // 2
        used = torch.cat([part["advantages"] for part in parts])
        groups = record.rewards[rollout].view(-1, GROUP)
        mean, sd = groups.mean(dim=1, keepdim=True), groups.std(dim=1, keepdim=True)
        expected = ((groups - mean) / (sd + 1e-4)).flatten()
        torch.testing.assert_close(used.sort().values, expected.sort().values, atol=1e-5, rtol=1e-5)

        total, tokens, kl = 0.0, 0, 0.0
        for part in parts:
            mask = part["completion_mask"]
            ratio = torch.exp(part["policy"] - part["old_per_token_logps"])
            a = part["advantages"][:, None]
            surrogate = -torch.min(ratio * a, ratio.clamp(1 - EPSILON, 1 + EPSILON) * a)
            delta = part["ref_per_token_logps"] - part["policy"]
            k3 = torch.exp(delta) - delta - 1
            total += ((surrogate + BETA * k3) * mask).sum().item()
            kl += (k3 * mask).sum().item()
            tokens += int(mask.sum())
        loss = sum(part["loss"] for part in parts)
        assert loss == pytest.approx(total / tokens, abs=2e-6)
        if passes == 1:  # else the trainer logs a mean over micro-batches
            assert logged[step + 1]["kl"] == pytest.approx(kl / tokens, abs=2e-6)


def test_the_first_update_is_on_policy_and_the_second_is_not(
    recorded: Recorded,
) -> None:
    """What the second pass divides by is what the first pass saw: the policy that wrote it."""
    record, passes = recorded.record, recorded.passes
    for step in range(0, 6, 2):
        first = record.updates[step * passes : (step + 1) * passes]
        second = record.updates[(step + 1) * passes : (step + 2) * passes]
        for before, after in zip(first, second, strict=True):
            mask = before["completion_mask"].bool()
            torch.testing.assert_close(
                before["policy"][mask], before["old_per_token_logps"][mask], atol=2e-5, rtol=0
            )
            assert torch.equal(before["completion_ids"], after["completion_ids"])
            assert torch.equal(before["old_per_token_logps"], after["old_per_token_logps"])
        moved = [
            (u["policy"] - u["old_per_token_logps"]).abs().mul(u["completion_mask"]).max()
            for u in second
        ]
        assert max(moved) > 1e-3


def test_the_record_on_disk_holds_the_rewards_and_advantages_that_were_used(
    recorded: Recorded,
) -> None:
    """Completion by completion, by prompt and text; TRL shuffles a rollout for its updates."""
    rows = recorded.rows
    assert rows["completion_id"].is_unique and len(rows) == 3 * 64
    assert (rows["step"] == rows["rollout"] * 2).all()
    decode = recorded.trainer.processing_class.decode
    for rollout, kept in rows.groupby("rollout"):
        first = recorded.record.updates[rollout * 2 * recorded.passes :][: recorded.passes]
        on_disk = {
            (row.prompt, row.completion, row.tokens): row.advantage for row in kept.itertuples()
        }
        for part in first:
            for row, advantage in enumerate(part["advantages"].tolist()):
                ids = part["completion_ids"][row][part["completion_mask"][row].bool()]
                asked = decode(part["prompt_ids"][row][part["prompt_mask"][row].bool()])
                text = decode(ids, skip_special_tokens=True)
                found = [v for (q, c, n), v in on_disk.items() if q in asked and c == text]
                assert found, f"{text!r} is not on disk"
                assert advantage == pytest.approx(found[0], abs=1e-5), text
        rewards = torch.tensor(kept["reward"].to_numpy(), dtype=torch.float32)
        torch.testing.assert_close(rewards, recorded.record.rewards[rollout])
        tokens = sum(int(part["completion_mask"].sum()) for part in first)
        assert kept["tokens"].sum() == tokens
    groups = rows.groupby(["rollout", "group"])
    spread = groups["reward"].max() - groups["reward"].min()
    pd.testing.assert_series_equal(
        groups["active"].first().astype(bool), spread > 0, check_names=False
    )


def test_equal_rewards_give_no_advantage_and_leave_the_policy_alone(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.6 eight times: in float32 their mean is off by 6e-8, which TRL's formula makes 6e-4."""
    job = grpo_job(micro, tmp_path, **short())
    _, trainer = built(job)
    scorer = trainer.reward_funcs[0]
    score = scorer.reward.score

    def constant(prompts: Any, completions: Any) -> Any:
        scores = score(prompts, completions)
        scores.values[:] = [0.6] * len(completions)
        return scores

    scorer.reward.score = constant
    record = Recorder(trainer)
    monkeypatch.setattr(grpo.Run, "build_trainer", lambda run: trainer)
    assert grpo.train(job)["status"] == "no-learning", "to the end, and nothing was learned"
    assert all((update["advantages"] == 0).all() for update in record.updates)
    history = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["grad_norm"] for line in history] == [0.0] * 2
    assert [line["kl"] for line in history] == [0.0] * 2
    assert history[0]["active_group_rate"] == 0.0
    assert history[0]["frac_reward_zero_std"] == 0.0, "TRL takes these groups for active"
