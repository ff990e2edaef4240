"""The study's settings in TRL's terms. Every option that decides a result is stated.

Which option realises what, and which defaults would break it: docs/training.md.
"""

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


def grpo_arguments(
    settings: Mapping[str, Any], work: Path, processes: int = 1, report_to: str = "none"
) -> Any:
    """TRL's options for GRPO as the paper's appendix A states it.

    loss_type "dapo" divides by the active tokens of the whole rollout; use_bias_correction_kl
    would weight the k3 estimator by the importance ratio, which the paper's formula does not.

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
        use_vllm=False,
        shuffle_dataset=True,
        remove_unused_columns=False,
        eval_strategy="no",
        log_completions=False,
        max_grad_norm=settings["max_grad_norm"],
        **_shared(settings, report_to),
    )


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
