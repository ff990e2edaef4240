"""The study's settings in TRL's terms. Every option that decides a result is stated.

Which option realises what, and which defaults would break it: docs/training.md.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.models.load import device


def batch_shape(settings: Mapping[str, Any], processes: int) -> tuple[int, int]:
    """(completions per forward pass, passes per optimizer step) in each of `processes`.

    Raises UserError when a rollout cannot be shared out evenly.
    """
    batch = settings["batch_size"]
    local, rest = divmod(batch, processes)
    if rest:
        raise UserError(
            f"grpo.batch_size: {batch} completions cannot be shared by {processes} processes; "
            "give rule train_grpo a number of processes that divides it"
        )
    micro = min(settings["micro_batch_size"] or local, local)
    if local % micro:
        raise UserError(
            f"grpo.micro_batch_size: {micro} does not divide the {local} completions of each of "
            f"{processes} processes ({batch} in all)"
        )
    return micro, local // micro


def check_engine_fits(settings: Mapping[str, Any], processes: int) -> None:
    """Raises UserError when the run asks for vLLM and cannot have it."""
    if not settings.get("use_vllm"):
        return
    if processes > 1:
        raise UserError(
            f"grpo.use_vllm: not supported in {processes} processes; set `processes` of rule "
            "train_grpo to 1 or grpo.use_vllm to false"
        )
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            "grpo.use_vllm: package vllm is not in this job's environment (envs/train.yaml); "
            "install the vllm that envs/vllm.yaml pins there, or set grpo.use_vllm to false"
        )


def grpo_arguments(
    settings: Mapping[str, Any],
    work: Path,
    processes: int = 1,
    report_to: str = "none",
    longest_prompt: int = 0,
) -> Any:
    """TRL's options for GRPO as the paper's appendix A states it.

    loss_type "dapo" divides by the active tokens of the whole rollout; use_bias_correction_kl
    would weight the k3 estimator by the importance ratio, which the paper's formula does not.

    Args:
        longest_prompt: tokens of the run's longest prompt; an engine needs it.
    Raises UserError when the batch cannot be shared out.
    """
    from trl.trainer.grpo_config import GRPOConfig

    from unlearning_grid.train.checkpoints import CHECKPOINTS

    micro, passes = batch_shape(settings, processes)
    return GRPOConfig(
        output_dir=str(work / CHECKPOINTS),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=passes,
        steps_per_generation=passes,
        num_generations=settings["num_generations"],
        num_iterations=settings["num_iterations"],
        max_steps=settings["max_steps"],
        loss_type="dapo",
        importance_sampling_level="token",
        epsilon=settings["epsilon"],
        epsilon_high=None,
        delta=None,
        scale_rewards="group",
        beta=settings["beta"],
        use_bias_correction_kl=False,
        max_completion_length=settings["max_new_tokens"],
        temperature=settings["temperature"],
        top_p=settings["top_p"],
        top_k=0,
        min_p=None,
        repetition_penalty=1.0,
        generation_kwargs=None,
        mask_truncated_completions=False,
        disable_dropout=False,
        **engine_options(settings, longest_prompt),
        shuffle_dataset=True,
        remove_unused_columns=False,
        eval_strategy="no",
        log_completions=False,
        ddp_find_unused_parameters=False,
        max_grad_norm=settings["max_grad_norm"],
        **_shared(settings, report_to),
    )


def engine_options(settings: Mapping[str, Any], longest_prompt: int) -> dict[str, Any]:
    """TRL's options for what samples the rollouts."""
    if not settings.get("use_vllm"):
        return {"use_vllm": False}
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        # It would multiply the policy loss by trainer over engine probability: not the paper's.
        "vllm_importance_sampling_correction": False,
        "vllm_max_model_length": longest_prompt + settings["max_new_tokens"],
        "vllm_gpu_memory_utilization": settings["vllm_memory_share"],
        "vllm_enable_sleep_mode": False,
    }


def sft_arguments(settings: Mapping[str, Any], work: Path, report_to: str = "none") -> Any:
    """TRL's options for the warm-up (paper Table 6)."""
    from trl.trainer.sft_config import SFTConfig

    from unlearning_grid.train.checkpoints import CHECKPOINTS

    return SFTConfig(
        output_dir=str(work / CHECKPOINTS),
        num_train_epochs=settings["epochs"],
        per_device_train_batch_size=settings["batch_size"],
        per_device_eval_batch_size=settings["eval_batch_size"],
        gradient_accumulation_steps=1,
        max_length=settings["max_length"],
        packing=False,
        eval_strategy="steps",
        eval_steps=1,
        eval_on_start=True,
        max_grad_norm=1.0,
        **_shared(settings, report_to),
    )


def _shared(settings: Mapping[str, Any], report_to: str) -> dict[str, Any]:
    cpu = device() == "cpu"
    return {
        "learning_rate": settings["learning_rate"],
        "optim": "adamw_torch_fused",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "weight_decay": 0.0,
        "seed": settings["seed"],
        "bf16": settings["model"].get("dtype") == "bfloat16",
        "use_cpu": cpu,
        "dataloader_pin_memory": not cpu,
        "gradient_checkpointing": settings["gradient_checkpointing"],
        "save_strategy": "steps",
        "save_steps": settings["save_steps"],
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": report_to,
        "disable_tqdm": True,
    }
