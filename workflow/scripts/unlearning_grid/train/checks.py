"""Checks that turn a silent non-result into an error. Each raises RuntimeError with what it saw.

A run can end well, with a plausible reward curve, and yet have trained nothing, started from the
wrong place or optimised another objective; docs/training.md names public cases of each.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from unlearning_grid.train.lora import ADAPTER_WEIGHTS

RATIO = "importance_ratio/max_abs_log"  # name of the metric that check_ratio looks at
# Largest KL to the reference at the first step, nats per token: 0 but for rounding.
FIRST_KL = {"float32": 1e-6, "bfloat16": 1e-3}
# Largest mean distance of engine and trainer, nats per token. Measured on a tiny model (CPU): 4e-7
# and 5e-3 in agreement; deeper models in bfloat16 may differ more.
ENGINE_GAP = {"float32": 1e-4, "bfloat16": 5e-2}
# A smaller gradient may leave no trace in the next forward pass.
NEGLIGIBLE_GRADIENT = 1e-6


def check_trainable(model: Any) -> None:
    """One adapter is trained, in float32, and nothing else; a second is the frozen reference."""
    names = sorted(model.peft_config)
    if names not in (["default"], ["default", "ref"]):
        raise RuntimeError(f"the model has adapters {names}, expected default, and ref if warm")
    trained = {name: w for name, w in model.named_parameters() if w.requires_grad}
    if not trained:
        raise RuntimeError("no parameter is trainable: the adapter was loaded for inference")
    strangers = [name for name in trained if ".lora_" not in name or ".default." not in name]
    if strangers:
        raise RuntimeError(f"parameters beside the adapter are trainable: {strangers[:5]}")
    low = [f"{name} ({w.dtype})" for name, w in trained.items() if str(w.dtype) != "torch.float32"]
    if low:
        raise RuntimeError(f"adapter weights are not in float32: {low[:5]}")


def check_first_kl(kl: float | None, dtype: str, reference: str) -> None:
    """The policy starts at its KL reference: at the first step the KL is 0 but for rounding.

    Args:
        kl: nats per token, None when the trainer logged none.
        dtype: precision of the base model.
        reference: what the run says its reference is.
    """
    limit = FIRST_KL[dtype]
    if kl is None or not abs(kl) <= limit:
        raise RuntimeError(
            f"KL to the reference ({reference}) is {kl} at the first step, expected at most "
            f"{limit} in {dtype}: policy or reference is not what it should be"
        )


def check_gradient(step: int, norm: float | None, signal: bool) -> None:
    """The gradient is finite, and not 0 after a rollout in which some group's rewards differ."""
    if norm is None or not math.isfinite(norm):
        raise RuntimeError(f"the gradient norm is {norm} at step {step}")
    if signal and norm == 0.0:
        raise RuntimeError(
            f"the gradient is 0 at step {step} although rewards differ within groups: the loss "
            "does not reach the adapter (inputs without gradients under checkpointing?)"
        )


def check_ratio(step: int, log_ratio: float | None, gradient: float) -> None:
    """A rollout's later updates see a policy that has left the one that wrote it.

    Args:
        log_ratio: largest absolute log importance ratio over the rollout's tokens.
        gradient: norm of the gradient of the rollout's first update.
    """
    if gradient <= NEGLIGIBLE_GRADIENT:
        return
    if log_ratio is None:
        raise RuntimeError(f"the importance ratios of step {step} are not numbers")
    if log_ratio == 0.0:
        raise RuntimeError(
            f"every importance ratio is 1 at step {step}, although the rollout's first update had "
            f"a gradient of {gradient:.3g}: the update did not reach the policy"
        )


def check_engine(step: int, gap: float, largest: float, dtype: str) -> None:
    """An engine that samples for the trainer gives its tokens the trainer's log-probabilities.

    Args:
        step: optimizer steps made when the rollout was sampled.
        gap: mean absolute difference over the rollout's tokens, nats; NaN is a disagreement.
        largest: the largest one.
        dtype: precision of both.
    """
    limit = ENGINE_GAP[dtype]
    if not gap <= limit:
        raise RuntimeError(
            f"engine and trainer differ by {gap:.3g} nats per token (largest {largest:.3g}) on the "
            f"rollout sampled after step {step}, expected at most {limit:g} in {dtype}: the engine "
            "does not have the trainer's weights, or computes something else with them"
        )


def check_ends(
    completions: Sequence[Sequence[int]], ends: Collection[int], max_new_tokens: int
) -> None:
    """The tokens in the loss are the completion up to its first end-of-turn token, with it.

    Args:
        completions: token ids under the loss mask, one sequence a completion.
        ends: every id that ends a turn.
    """
    for number, ids in enumerate(completions):
        first = next((place for place, token in enumerate(ids) if token in ends), None)
        if first is not None and first < len(ids) - 1:
            raise RuntimeError(
                f"completion {number} of a rollout goes on for {len(ids) - 1 - first} tokens after "
                f"end-of-turn token {ids[first]}; the trainer does not end turns at it"
            )
        if first is None and len(ids) != max_new_tokens:
            raise RuntimeError(
                f"completion {number} of a rollout has {len(ids)} tokens in the loss and no "
                f"end-of-turn token ({sorted(ends)}); the loss mask cuts it off"
            )


def check_groups(prompt_ids: Sequence[str], size: int) -> None:
    """Every `size` consecutive completions answer one prompt."""
    for start in range(0, len(prompt_ids), size):
        group = prompt_ids[start : start + size]
        if len(set(group)) > 1 or len(group) < size:
            raise RuntimeError(f"a group of {size} completions mixes prompts {sorted(set(group))}")


def check_changed(adapter: Path, start: Path | None, learned: bool = True) -> None:
    """Training left a trace in the saved adapter.

    Args:
        adapter: folder of the saved adapter.
        start: folder of the adapter that training started from, None for a fresh one.
        learned: False for a run without any reward signal, which may leave no trace.
    """
    from safetensors import safe_open

    before = _weights(start, safe_open) if start else {}
    after = _weights(adapter, safe_open)
    if not after:
        raise RuntimeError(f"{adapter} holds no weights")
    if start and set(after) != set(before):
        other = sorted(set(after) ^ set(before))
        raise RuntimeError(f"{adapter} and its start {start} differ in their weights: {other[:5]}")
    if not learned:
        return
    if not any(weight.any() for name, weight in after.items() if "lora_B" in name):
        raise RuntimeError(f"every B matrix in {adapter} is zero: the adapter did not learn")
    if start and all((weight == before[name]).all() for name, weight in after.items()):
        raise RuntimeError(f"the adapter in {adapter} equals the one it started from")


def check_loaded(model: Any, checkpoint: Path) -> None:
    """A resumed run has the checkpoint's adapters, the trained one and the reference."""
    from peft import get_peft_model_state_dict
    from safetensors import safe_open

    for adapter in model.peft_config:
        folder = checkpoint if adapter == "default" else checkpoint / adapter
        saved = _weights(folder, safe_open)
        loaded = get_peft_model_state_dict(model, adapter_name=adapter)
        if not all((loaded[name].cpu() == weight).all() for name, weight in saved.items()):
            raise RuntimeError(f"adapter {adapter} is not the one in {folder} after loading it")


def _weights(folder: Path, safe_open: Any) -> Mapping[str, Any]:
    with safe_open(folder / ADAPTER_WEIGHTS, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
