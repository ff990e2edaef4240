"""Rules and checks of training as functions of numbers."""

import math
from types import SimpleNamespace

import pytest

from unlearning_grid.errors import UserError
from unlearning_grid.train import checks
from unlearning_grid.train.arguments import batch_shape, check_engine_fits, engine_options
from unlearning_grid.train.processes import check_devices
from unlearning_grid.train.rollouts import advantages, group_is_active, rollout_rows
from unlearning_grid.train.rules import no_learning_step, warmup_fires


@pytest.mark.parametrize(
    ("share", "broad", "refusal"),
    [(0.10, False, True), (11 / 104, True, True), (0.0999, False, False), (None, False, False)],
)
def test_broad_is_exceeded_and_refusal_is_reached(share, broad, refusal) -> None:
    assert warmup_fires(share, 0.10, broad=True) is broad
    assert warmup_fires(share, 0.10, broad=False) is refusal


def test_the_papers_run_is_judged_after_50_steps_or_as_its_code_did_after_51() -> None:
    rollouts = 203 // (64 // 8)
    assert no_learning_step(rollouts, 2, "before-update") == 50
    assert no_learning_step(rollouts, 2, "paper") == 51


@pytest.mark.parametrize(
    ("rewards", "active", "expected"),
    [
        ([1.0, 0.0, 1.0, 0.0], True, [0.86588, -0.86588, 0.86588, -0.86588]),  # sd 0.57735
        ([0.4] * 8, False, [0.0] * 8),
        ([None, 1.0, 0.0, 1.0], True, [0.0, 0.57725, -1.1545, 0.57725]),
        ([None, None, None, 1.0], None, [0.0] * 4),
        ([0.5, 0.5 + 1e-7], False, [0.0, 0.0]),
    ],
)
def test_advantages_and_activity(rewards, active, expected) -> None:
    assert group_is_active(rewards) is active
    assert advantages(rewards) == pytest.approx(expected, abs=1e-4)


def scored(prompt: str, reward: float | None, **columns: object) -> dict:
    texts = {"prompt": "Who?", "completion": "He.", "tokens": 2, "finish_reason": "stop"}
    return {"prompt_id": prompt, **texts, "reward": reward, **columns}


def test_rows_of_a_rollout_are_numbered_and_its_groups_are_pure() -> None:
    made = [scored("a", 1.0, hits=0), scored("a", 0.0, hits=2), scored("b", 1.0), scored("b", 1.0)]
    rows = list(rollout_rows(3, 6, made, 2))
    assert [row["completion_id"] for row in rows] == ["3-0-0", "3-0-1", "3-1-0", "3-1-1"]
    assert [row["active"] for row in rows] == [True, True, False, False]
    assert list(rows[0])[:5] == ["rollout", "step", "group", "sample", "completion_id"]
    assert rows[1]["hits"] == 2 and rows[1]["step"] == 6
    with pytest.raises(RuntimeError, match=r"mixes prompts \['a', 'b'\]"):
        list(rollout_rows(3, 6, [made[0], made[2]], 2))


@pytest.mark.parametrize(
    ("kl", "dtype", "fine"),
    [
        (0.0, "float32", True),
        (1e-6, "float32", True),
        (1.1e-6, "float32", False),
        (9e-4, "bfloat16", True),
        (1.1e-3, "bfloat16", False),
        (math.nan, "float32", False),
        (None, "float32", False),
    ],
)
def test_the_first_kl(kl, dtype, fine) -> None:
    if fine:
        checks.check_first_kl(kl, dtype, "base model")
    else:
        with pytest.raises(RuntimeError, match=r"KL to the reference \(base model\)"):
            checks.check_first_kl(kl, dtype, "base model")


def test_ends_of_turns() -> None:
    checks.check_ends([[5, 6, 2], [5, 3], [4, 4, 4, 4], [2]], ends={2, 3}, max_new_tokens=4)
    with pytest.raises(RuntimeError, match="completion 1 .* 1 tokens after end-of-turn token 2"):
        checks.check_ends([[2], [2, 5]], {2, 3}, 4)
    with pytest.raises(RuntimeError, match="completion 0 .* 3 tokens in the loss and no"):
        checks.check_ends([[4, 4, 4]], {2, 3}, 4)


def test_gradients_and_ratios() -> None:
    checks.check_gradient(1, 0.3, signal=True)
    checks.check_gradient(1, 0.0, signal=False)
    for norm in (None, math.nan, math.inf):
        with pytest.raises(RuntimeError, match="gradient norm"):
            checks.check_gradient(4, norm, signal=False)
    checks.check_ratio(2, 0.01, gradient=0.3)
    checks.check_ratio(2, 0.0, gradient=0.0)  # nothing to learn, nothing moved
    with pytest.raises(RuntimeError, match="every importance ratio is 1 at step 2"):
        checks.check_ratio(2, 0.0, gradient=0.3)


@pytest.mark.parametrize(
    ("gap", "dtype", "fine"),
    [
        (4e-7, "float32", True),
        (1e-4, "float32", True),
        (2e-4, "float32", False),
        (5e-3, "bfloat16", True),
        (0.0505, "bfloat16", False),
        (math.nan, "float32", False),
        (math.inf, "bfloat16", False),
    ],
)
def test_an_engine_that_disagrees_is_an_error_with_its_numbers(gap, dtype, fine) -> None:
    if fine:
        checks.check_engine(2, gap, 1.0, dtype)
    else:
        said = f"differ by {gap:.3g} nats per token .largest 1. on .* after step 2, .* {dtype}"
        with pytest.raises(RuntimeError, match=said):
            checks.check_engine(2, gap, 1.0, dtype)


def test_an_engine_samples_for_one_process_and_only_where_it_is_installed(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_engine_fits({"use_vllm": False}, 4)
    check_engine_fits({}, 4)
    with pytest.raises(UserError, match=r"grpo\.use_vllm: not supported in 2 processes"):
        check_engine_fits({"use_vllm": True}, 2)
    with pytest.raises(UserError, match=r"grpo\.use_vllm: .* \(envs/train\.yaml\); install"):
        check_engine_fits({"use_vllm": True}, 1)


def test_an_engine_changes_who_samples_and_not_the_loss() -> None:
    assert engine_options({"max_new_tokens": 256}, 90) == {"use_vllm": False}
    on = {"use_vllm": True, "vllm_memory_share": 0.4, "max_new_tokens": 256}
    options = engine_options(on, longest_prompt=90)
    assert options["vllm_importance_sampling_correction"] is False
    assert options["vllm_mode"] == "colocate" and options["vllm_max_model_length"] == 346


def test_a_rollout_is_shared_out_evenly_or_refused_with_the_numbers() -> None:
    def shape(processes: int, micro: int | None = None) -> tuple[int, int]:
        return batch_shape({"batch_size": 64, "micro_batch_size": micro}, processes)

    assert shape(1) == (64, 1) and shape(1, 16) == (16, 4)
    assert shape(2) == (32, 1) and shape(4, 8) == (8, 2) and shape(4, 64) == (16, 1)
    with pytest.raises(UserError, match="64 completions cannot be shared by 3 processes"):
        shape(3)
    with pytest.raises(UserError, match="12 does not divide the 32 completions of each of 2"):
        shape(2, 12)


def test_adapters_by_name() -> None:
    model = SimpleNamespace(peft_config={"default": 0, "ref": 0, "new": 0})
    with pytest.raises(RuntimeError, match="adapters"):
        checks.check_trainable(model)


def test_each_process_has_one_gpu_or_none_has() -> None:
    for processes, gpus in ((1, 0), (2, 0), (1, 1), (4, 4)):
        check_devices(processes, gpus)
    for processes, gpus in ((1, 8), (2, 1), (2, 4)):
        with pytest.raises(UserError, match=f"{gpus} GPUs .* {processes} process.*"):
            check_devices(processes, gpus)
