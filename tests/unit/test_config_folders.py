"""Folders that a configuration names: rows and models, looked at before a job starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from support import config
from unlearning_grid.checks import BENCHMARK, PROBES
from unlearning_grid.config import load
from unlearning_grid.errors import UserError

Raw = dict[str, Any]


def problems(raw: Raw) -> list[str]:
    """The listed problems of a configuration that must be refused."""
    with pytest.raises(UserError) as caught:
        load(raw)
    return [line.removeprefix("  - ") for line in str(caught.value).splitlines()[1:]]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """RWKU's files with 300 questions about Bruce Lee and 40 about Karl Marx."""
    folder = tmp_path / "rwku"
    folder.mkdir()
    subjects = ["Bruce Lee"] * 300 + ["Karl Marx"] * 40
    for name in ("train_refusal_phi3", *PROBES, *BENCHMARK):
        lines = (json.dumps({"subject": subject}) + "\n" for subject in subjects)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def from_folder(folder: Path | str, **grpo: Any) -> Raw:
    """The demo's grid on rows of a folder."""
    raw = config("demo")
    raw["data"] = {"source": "path", "path": str(folder)}
    raw["models"] = {"tiny": {"repo": "some/model", "revision": "0" * 40}}
    raw["broad_answers"] = {"provider": "policy", "size": "tiny"}
    raw["grpo"] |= grpo
    return raw


def test_a_folder_with_enough_rows_is_accepted(rows: Path) -> None:
    assert load(from_folder(rows))["data"]["source"] == "path"


def test_a_target_with_too_few_rows_is_named(rows: Path) -> None:
    # 4 rows: 1 held out, ceil(0.15 x 3) = 1 for the warm-up, which is its monitor's: none to train
    path = rows / "train_refusal_phi3.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:304]), encoding="utf-8")
    (found,) = problems(from_folder(rows))
    assert found.startswith("grid.targets: karl-marx (Karl Marx) has 4 rows in train_refusal_phi3")
    assert "'sft_train': 0" in found and found.endswith("Drop the target.")


def test_a_missing_file_of_the_folder_is_named(rows: Path) -> None:
    (rows / "neighbor_level2.jsonl").unlink()
    (found,) = problems(from_folder(rows))
    assert found == f"data.path: no file neighbor_level2.jsonl in {rows}."


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    (found,) = problems(from_folder(tmp_path / "none"))
    assert found.startswith(f'data.path: no folder "{tmp_path / "none"}";')


def test_a_folder_must_be_given() -> None:
    raw = from_folder("x")
    del raw["data"]["path"]
    (found,) = problems(raw)
    assert found == "data.path: missing; name the folder of {config}.jsonl files."


def test_an_unset_variable_is_named_and_a_set_one_is_used(
    rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROWS_OF_TEST", raising=False)
    (found,) = problems(from_folder("$ROWS_OF_TEST/rwku"))
    assert found == (
        "data.path: environment variable ROWS_OF_TEST is not set; set it or write a path."
    )
    monkeypatch.setenv("ROWS_OF_TEST", str(rows.parent))
    assert load(from_folder("$ROWS_OF_TEST/rwku"))["data"]["path"] == "$ROWS_OF_TEST/rwku"
    assert load(from_folder("${ROWS_OF_TEST}/rwku")).file("${ROWS_OF_TEST}/rwku") == rows


def test_a_model_folder_needs_safetensors(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    raw = config("demo")
    raw["models"]["tiny"] = {"path": str(folder)}
    (found,) = problems(raw)
    assert found.startswith(f'models.tiny.path: no config.json in "{folder}"')
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    (found,) = problems(raw)
    assert found.startswith(f'models.tiny.path: no *.safetensors in "{folder}"')
    (folder / "model.safetensors").write_bytes(b"x")
    assert load(raw)["models"]["tiny"]["path"] == str(folder)
