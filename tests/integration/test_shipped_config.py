"""What a model ships for generation, read from its files alone."""

import json
from pathlib import Path

import pytest
from transformers import Qwen2Config

from unlearning_grid.errors import UserError
from unlearning_grid.models.sampling import shipped_config, shipped_repetition_penalty


def test_end_tokens_of_a_model_without_a_generation_config(tmp_path: Path) -> None:
    """Read from the files, as vLLM's start needs it, they are those that the loaded model has."""
    where = {"location": str(tmp_path), "revision": None}
    Qwen2Config(eos_token_id=7).save_pretrained(tmp_path)
    assert shipped_config(where).eos_token_id == 7
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    assert shipped_config(where).eos_token_id == [3, 4]


def test_the_penalty_that_a_model_ships(tmp_path: Path) -> None:
    where = {"location": str(tmp_path), "revision": None}
    assert shipped_repetition_penalty(where) == 1.0
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": 2}))
    assert shipped_repetition_penalty(where) == 1.0
    file.write_text(json.dumps({"repetition_penalty": 1.05, "do_sample": True}))
    assert shipped_repetition_penalty(where) == 1.05
    file.write_text("{")
    with pytest.raises(UserError, match="models: generation config of "):
        shipped_repetition_penalty(where)
