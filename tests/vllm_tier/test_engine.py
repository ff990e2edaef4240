"""The engine itself: what it says, how it samples, and what it says when it cannot start."""

import math
from pathlib import Path

import pytest

from unlearning_grid.generate.engine_errors import CAUSES
from vllm_tier.conftest import PYTHON, SMALL_MODEL, asked

pytestmark = pytest.mark.vllm

MODEL = "results/world/model"
ADAPTER = "results/grpo/tiny/bruce-lee/warm/r0-lex/s0/adapter"


@pytest.mark.parametrize("rank", [0, 24], ids=["base", "adapter"])
def test_a_real_instruct_model_says_the_same_in_both_engines(rank: int) -> None:
    """Rank 24 is above vLLM's default limit and no rank that it offers: it serves it as 32."""
    found = asked("agreement", model=str(SMALL_MODEL), rank=rank, tokens=24)
    assert found["rows"] == found["same"] == 12
    assert found["logprob_difference"] < 1e-3
    assert found["texts"][:6] != found["texts"][6:], "the penalty must do something"


def test_a_sample_depends_on_its_prompt_and_seed_alone(micro: Path) -> None:
    found = asked("order", model=str(micro / MODEL), adapter=str(micro / ADAPTER))
    assert found["whole"] == found["parts"]
    differing = sum(a != b for a, b in zip(found["whole"], found["other"], strict=True))
    assert differing >= len(found["whole"]) // 3, "other seeds must draw other samples"


def test_samples_have_the_models_probabilities(micro: Path) -> None:
    draws = 4000
    found = asked("distribution", model=str(micro / MODEL), draws=draws)
    for count, probability in zip(found["counts"], found["probabilities"], strict=True):
        error = math.sqrt(probability * (1 - probability) / draws)
        assert abs(count / draws - probability) < 4.5 * error
    assert found["probabilities"][0] < 0.95, "one token must not take it all"


@pytest.mark.parametrize(
    ("share", "words"),
    [(1.0, "less is free than generate.vllm_memory_share (1.00"), (0.001, "raise it")],
    ids=["too much", "too little"],
)
def test_an_engine_without_memory_names_the_setting(micro: Path, share: float, words: str) -> None:
    found = asked("refused", model=str(micro / MODEL), share=share)
    assert found["error"] == "UserError"
    assert found["message"].startswith("generate.backend: vllm did not start: memory: ")
    assert words in found["message"]


def test_vllm_and_torch_still_say_what_the_causes_look_for() -> None:
    """Every phrase stands in what is installed: an upgrade cannot silence an explanation."""
    (packages,) = (PYTHON.parents[1] / "lib").glob("python3.*/site-packages")
    places = ["vllm/v1", "vllm/config", "vllm/platforms", "torch/cuda", "torch/distributed"]
    files = [path for place in places for path in (packages / place).rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    binary = (packages / "torch/lib/libc10.so").read_bytes()
    missing = [
        phrase
        for phrases, _ in CAUSES
        for phrase in phrases
        if phrase.removesuffix("(-") not in text and phrase.encode() not in binary
    ]
    assert missing == ["No CUDA GPUs are available", "no NVIDIA driver"]  # in CUDA builds only
