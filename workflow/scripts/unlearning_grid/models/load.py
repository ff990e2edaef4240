"""Loading base models and adapters: one way, for training, sampling and scoring."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unlearning_grid.config import expand_path
from unlearning_grid.errors import UserError
from unlearning_grid.runtime.job import Job
from unlearning_grid.spec.hub import cannot_load


def locate(job: Job, facts: Mapping[str, Any], name: str = "model") -> dict[str, Any]:
    """Where a model's files are: {"location", "revision", "dtype"}.

    Args:
        facts: the model's identity in the spec (repo and revision, path, or build).
        name: the input that holds the manifest of a model that a rule builds.
    """
    if "build" in facts:
        location = str(job.artefact(name, "model"))
    elif "path" in facts:
        location = str(expand_path(facts["path"]))
    else:
        location = facts["repo"]
    return {
        "location": location,
        "revision": facts.get("revision"),
        "dtype": facts.get("dtype", "float32"),
    }


def device() -> str:
    """ "cuda" where there is a GPU, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def load_tokenizer(model: Mapping[str, Any]) -> Any:
    """Tokenizer with left padding and a padding token.

    Raises UserError when it cannot be read or has no chat template.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            model["location"], revision=model["revision"], padding_side="left"
        )
    except (OSError, ValueError) as error:
        raise _cannot_load("tokenizer of", model, error) from error
    if not tokenizer.chat_template:
        raise UserError(f"models: {model['location']} has no chat template; use a chat model")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def context_window(model: Mapping[str, Any]) -> int | None:
    """Tokens that the model can read, by its configuration; None where it does not say."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model["location"], revision=model["revision"])
    except (OSError, ValueError) as error:
        raise _cannot_load("configuration of", model, error) from error
    return getattr(config, "max_position_embeddings", None)


def load_model(model: Mapping[str, Any]) -> Any:
    """Base model on this machine's device, in its stated precision, safetensors only.

    Of the generation config that it ships with, only the special tokens are kept: whatever a
    caller left out would be taken from it (a repetition penalty, a top-k), in TRL's rollouts, too.

    Raises UserError when it cannot be read.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            model["location"],
            revision=model["revision"],
            dtype=getattr(torch, model["dtype"]),
            use_safetensors=True,
        )
    except (OSError, ValueError) as error:
        raise _cannot_load("weights of", model, error) from error
    shipped = loaded.generation_config
    loaded.generation_config = GenerationConfig(
        bos_token_id=shipped.bos_token_id,
        eos_token_id=shipped.eos_token_id,
        pad_token_id=shipped.pad_token_id,
    )
    return loaded.to(device())


def with_adapter(model: Any, adapter: Path, trainable: bool = False) -> Any:
    """The model with a LoRA adapter on top, not merged. `trainable` continues its training."""
    from peft import PeftModel

    return PeftModel.from_pretrained(model, str(adapter), is_trainable=trainable)


def _cannot_load(part: str, model: Mapping[str, Any], error: Exception) -> UserError:
    return cannot_load(f"models: {part}", model["location"], model["revision"], error)
