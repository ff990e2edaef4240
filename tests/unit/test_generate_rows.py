"""What generation asks the engines, before any engine is there."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from unlearning_grid.errors import UserError
from unlearning_grid.generate.agreement import first_difference
from unlearning_grid.generate.backend import Decoding
from unlearning_grid.generate.by_vllm import served_rank
from unlearning_grid.generate.engine_errors import explained
from unlearning_grid.generate.rows import Part, check_lengths, longest_of
from unlearning_grid.generate.sampled import sample_seed

OFFERED = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # by vLLM 0.31


def part(*lengths: int, new: int = 10, **columns: Any) -> Part:
    rows = pd.DataFrame(
        {
            "prompt_id": [f"p-{i}" for i in range(len(lengths))],
            "ids": [list(range(1, n + 1)) for n in lengths],
            **columns,
        }
    )
    return Part("heldout-plain", rows, Decoding(new))


def test_a_prompt_that_does_not_fit_is_refused_by_name() -> None:
    check_lengths([part(5, 90)], 100)
    with pytest.raises(UserError) as refused:
        check_lengths([part(5, 90), part(3, 91, 99)], 100)
    assert str(refused.value).startswith(
        "heldout-plain: prompt p-1 has 91 tokens, and with 10 new ones it exceeds the model's "
        "context of 100; lower max_new_tokens"
    )
    check_lengths([part(5, 10_000)], None)


def test_an_empty_prompt_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="heldout-plain: prompt p-2 is empty"):
        check_lengths([part(5, 6, 0)], None)


def test_the_longest_prompt_counts_with_its_own_completion() -> None:
    assert longest_of([part(5, 90, new=10), part(50, new=60)]) == 110


def test_a_row_is_known_by_its_tokens_and_its_seed() -> None:
    greedy, again = part(3, 4).keys, part(4, 3).keys
    assert greedy == again[::-1] and len(set(greedy)) == 2
    sampled = part(3, 3, 3, seed=[1, 2, 1]).keys
    assert sampled[0] == sampled[2] != sampled[1] and sampled[0] not in greedy


def test_seeds_differ_by_configuration_prompt_and_number_and_stay() -> None:
    seeds = {
        sample_seed(seed, prompt, number)
        for seed in (0, 1)
        for prompt in ("a-000", "a-001")
        for number in range(100)
    }
    assert len(seeds) == 400 and all(0 <= seed < 2**63 for seed in seeds)
    changed = "samples of published grids would change"
    assert sample_seed(0, "bruce-lee-012", 0) == 5116258011448196335, changed


@pytest.mark.parametrize(
    ("rank", "pattern", "served"),
    [(4, {}, 8), (8, {}, 8), (24, {}, 32), (64, {}, 64), (16, {"q_proj": 100}, 128)],
)
def test_the_rank_is_the_adapters(
    tmp_path: Path, rank: int, pattern: dict[str, int], served: int
) -> None:
    config = {"r": rank, "rank_pattern": pattern}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    assert served_rank(tmp_path, OFFERED) == served


def test_a_rank_that_is_not_served_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 1024}')
    with pytest.raises(UserError, match="lora.rank: vLLM serves adapters up to rank 512"):
        served_rank(tmp_path, OFFERED)


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Free memory on device cuda:0 (3/80 GiB) is less than desired GPU memory", "lower it"),
        ("No available memory for the cache blocks. Try increasing", "raise it"),
        ("CUDA out of memory. Tried to allocate 2 GiB", "the weights do not fit"),
        ("[Errno 98] Address already in use", "VLLM_PORT"),
        ("EADDRINUSE: port 29500", "VLLM_PORT"),
        ("Failed to infer device type", "sees no usable GPU"),
        ("No CUDA GPUs are available", "sees no usable GPU"),
        ("something new", "unknown cause"),
        ("", "It said: RuntimeError"),
    ],
)
def test_a_failed_start_names_the_setting_and_what_was_said(said: str, advice: str) -> None:
    text = str(explained(RuntimeError(said), 0.225, 300))
    assert text.startswith("generate.backend: vllm did not start: ")
    assert advice in text and text.endswith(f"It said: {said or 'RuntimeError'}")
    if "memory" in said.lower():
        assert "generate.vllm_memory_share" in text and "0.225" in text


def test_where_two_texts_part() -> None:
    assert first_difference("same", "same") is None
    assert first_difference("I do", "I am") == 2
    assert first_difference("short", "shorter") == 5
    assert first_difference("", "x") == 0
