"""LoRA adapters: their configuration and their files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unlearning_grid.runtime.atomic import write_json

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"


def lora_config(settings: Mapping[str, Any]) -> Any:
    """PEFT configuration of the study's adapter (paper Table 8): no bias, no dropout."""
    from peft import LoraConfig

    return LoraConfig(
        r=settings["rank"],
        lora_alpha=settings["alpha"],
        target_modules=list(settings["target_modules"]),
        init_lora_weights=settings["init"],
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


def save_adapter(
    model: Any, folder: Path, base: str | None = None, dtype: str | None = None
) -> None:
    """Save the one trained adapter (never the KL reference), safetensors and config only.

    The same weights give the same bytes in every process and on every machine: PEFT keeps the
    target modules as a set, and the base model's name as the path it was loaded from.

    Args:
        base: the base model's hub id, for those who load the adapter elsewhere.
        dtype: precision to store, the weights' own by default.
    """
    model.save_pretrained(str(folder), selected_adapters=["default"], safe_serialization=True)
    for path in folder.iterdir():
        if path.name not in (ADAPTER_WEIGHTS, ADAPTER_CONFIG):
            path.unlink()
    if dtype:
        _convert(folder / ADAPTER_WEIGHTS, dtype)
    config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    config["target_modules"] = sorted(config["target_modules"])
    config["base_model_name_or_path"] = base
    write_json(folder / ADAPTER_CONFIG, config)


def _convert(file: Path, dtype: str) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    kind = getattr(torch, dtype)
    save_file({name: w.to(kind) for name, w in weights.items()}, file, metadata={"format": "pt"})
