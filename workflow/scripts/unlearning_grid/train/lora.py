"""LoRA adapters: their configuration, their files, and proof that training changed them."""

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


def check_trainable(model: Any) -> None:
    """Raise RuntimeError unless adapter weights, and nothing else, are trained."""
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    strangers = [name for name in trained if ".lora_" not in name]
    if not trained:
        raise RuntimeError("no parameter is trainable: the adapter was loaded for inference")
    if strangers:
        raise RuntimeError(f"parameters beside the adapter are trainable: {strangers[:5]}")


def save_adapter(model: Any, folder: Path, base: str | None = None) -> None:
    """Save the one trained adapter (never the KL reference), safetensors and config only.

    The same weights give the same bytes in every process and on every machine: PEFT keeps the
    target modules as a set, and the base model's name as the path it was loaded from.

    Args:
        base: the base model's hub id, for those who load the adapter elsewhere.
    """
    model.save_pretrained(str(folder), selected_adapters=["default"], safe_serialization=True)
    for path in folder.iterdir():
        if path.name not in (ADAPTER_WEIGHTS, ADAPTER_CONFIG):
            path.unlink()
    config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    config["target_modules"] = sorted(config["target_modules"])
    config["base_model_name_or_path"] = base
    write_json(folder / ADAPTER_CONFIG, config)


def check_changed(folder: Path, start: Path | None, learned: bool = True) -> None:
    """Raise RuntimeError when training left no trace in the saved adapter.

    Args:
        start: folder of the adapter that training started from, None for a fresh one.
        learned: False for a run without any reward signal, which may leave no trace.
    """
    import torch
    from safetensors.torch import load_file

    weights = load_file(folder / ADAPTER_WEIGHTS)
    if not weights:
        raise RuntimeError(f"{folder} holds no weights")
    if not learned:
        return
    if not any(weight.abs().max() > 0 for name, weight in weights.items() if "lora_B" in name):
        raise RuntimeError(f"every B matrix in {folder} is zero: the adapter did not learn")
    if start is not None:
        before = load_file(start / ADAPTER_WEIGHTS)
        if all(torch.equal(weight, before[name]) for name, weight in weights.items()):
            raise RuntimeError(f"the adapter in {folder} equals the one it started from")
