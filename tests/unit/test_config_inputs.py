"""Files and values that are no configuration at all: still a message, never a stack trace."""

import json
from pathlib import Path
from typing import Any

import pytest

from support import config
from unlearning_grid.checks import PROBES
from unlearning_grid.config import load, load_file
from unlearning_grid.errors import UserError


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n- b\n", "only words\n"])
def test_a_file_that_is_no_mapping_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError):
        load_file(path)


def test_a_file_that_is_no_yaml_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text("grid: [\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"grid\.yaml: not YAML"):
        load_file(path)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml: No such file"):
        load_file(tmp_path / "none.yaml")


@pytest.mark.parametrize("seed", [0.0, True, "0"])
def test_a_seed_is_an_integer(seed: Any) -> None:
    raw = config("demo")
    raw["grid"]["seeds"] = [seed]
    with pytest.raises(UserError, match=r"grid\.seeds\.0"):
        load(raw)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_is_a_number(value: float) -> None:
    raw = config("demo")
    raw["grpo"]["learning_rate"] = value
    with pytest.raises(UserError, match=r"grpo\.learning_rate"):
        load(raw)


def test_fractions_that_leave_nothing_for_grpo_are_named() -> None:
    raw = config("demo")
    raw["split"] = {"sft_train_fraction": 0.6, "sft_test_fraction": 0.5}
    with pytest.raises(UserError, match=r"split\.sft_t\w+_fraction"):
        load(raw)


@pytest.mark.parametrize("line", ['{"subject": ', '{"subjekt": "Bruce Lee"}', "[1]"])
def test_a_broken_row_of_a_data_folder_is_refused_by_file(line: str, tmp_path: Path) -> None:
    good = json.dumps({"subject": "Bruce Lee"})
    for name in ("train_refusal_phi3", *PROBES):
        (tmp_path / f"{name}.jsonl").write_text(f"{good}\n" * 300, encoding="utf-8")
    with open(tmp_path / "train_refusal_phi3.jsonl", "a", encoding="utf-8") as file:
        file.write(line + "\n")
    raw = config("demo")
    raw["grid"]["targets"] = ["bruce-lee"]
    raw["data"] = {"source": "path", "path": str(tmp_path)}
    raw["models"] = {"tiny": {"repo": "some/model", "revision": "0" * 40}}
    raw["broad_answers"] = {"provider": "policy", "size": "tiny"}
    with pytest.raises(UserError, match=r"train_refusal_phi3\.jsonl"):
        load(raw)


@pytest.mark.parametrize(
    "text",
    ["", "- bruce-lee\n", "bruce-lee:\n  hard: [a]\n", "bruce-lee: [a]\n"],
    ids=["empty", "list", "half", "terms without a kind"],
)
def test_a_terms_file_of_another_shape_is_refused_by_key(text: str, tmp_path: Path) -> None:
    path = tmp_path / "terms.yaml"
    path.write_text(text, encoding="utf-8")
    raw = config("demo")
    raw["grid"]["targets"] = ["bruce-lee"]
    raw["resources"]["terms"] = str(path)
    with pytest.raises(UserError, match=r"resources\.terms|terms\.yaml"):
        load(raw)
