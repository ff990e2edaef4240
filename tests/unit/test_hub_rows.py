"""Rows from a real hub on localhost at one commit, and what jobs say when a file is not there."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub_server import Hub, data_set, use
from real_rows import RWKU_DIR, needs_rwku
from unlearning_grid.data.hub import read_hub
from unlearning_grid.data.load import rows_of
from unlearning_grid.data.rwku import RWKU_CONFIGS, read_jsonl
from unlearning_grid.errors import UserError
from unlearning_grid.models.load import context_window, load_model, load_tokenizer

ROWS = [
    {"query": "Who is ___?", "answer": answer, "level": "1", "type": "cloze", "subject": "A Person"}
    for answer in ("A Person", "Nobody")
]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one data set, and an empty cache, for this process."""
    with Hub() as hub:
        use(monkeypatch, hub.address, tmp_path / "hub")
        hub.push("dataset", "some/rows", data_set({"forget_level1": ROWS}))
        yield hub


def test_rows_of_the_hub_come_from_the_named_config_and_commit(hub) -> None:
    commit = hub.repos["dataset", "some/rows"][0][0]
    hub.push("dataset", "some/rows", data_set({"forget_level1": [{"changed": 1}]}))
    source = {"kind": "hub", "repo": "some/rows", "revision": commit}
    expected = [{**ROWS[0], "repeated": False}, {**ROWS[1], "repeated": True}]
    assert rows_of(source, "forget_level1", "A Person") == expected
    hub.requests.clear()
    assert rows_of(source, "forget_level1", "A Person") == expected
    assert hub.requests == [], "what is in the cache is read without a request"


def test_rows_without_a_commit_are_refused(hub) -> None:
    source = {"kind": "hub", "repo": "some/rows", "revision": None}
    with pytest.raises(UserError, match="data.revision: null, and config/hub.lock.yaml .*prefetch"):
        rows_of(source, "forget_level1", "A Person")
    assert hub.requests == []


@pytest.mark.parametrize(
    "files, message",
    [
        ({"README.md": b"no head"}, "its card names no files of config forget_level1, split test"),
        (data_set({"forget_level2": ROWS}), "its card names no files of config forget_level1"),
        ({**data_set({"forget_level1": []}), "All/of_forget_level1.json": b"[1]"}, "JSON object"),
        ({**data_set({"forget_level1": []}), "All/of_forget_level1.json": b"{x"}, "neither a JSON"),
        ({"All/of_forget_level1.json": b"[]"}, "data.repo: README.md of some/rows at .*prefetch"),
    ],
)
def test_a_data_set_of_another_form_is_a_user_error(hub, files, message) -> None:
    commit = hub.push("dataset", "some/rows", files)
    source = {"kind": "hub", "repo": "some/rows", "revision": commit}
    with pytest.raises(UserError, match=message):
        rows_of(source, "forget_level1", "A Person")


def test_json_lines_are_read_too(hub) -> None:
    files = data_set({"forget_level1": []})
    files["All/of_forget_level1.json"] = "\n".join(map(json.dumps, ROWS)).encode()
    commit = hub.push("dataset", "some/rows", files)
    source = {"kind": "hub", "repo": "some/rows", "revision": commit}
    assert len(rows_of(source, "forget_level1", "A Person")) == 2


@needs_rwku
@pytest.mark.parametrize("name", ["forget_level2", "mia_forget", "utility_truthfulness"])
def test_rows_are_those_of_the_datasets_library(hub, tmp_path, name) -> None:
    """It reads the same card and the same files, from a folder."""
    from datasets import Dataset, load_dataset

    files = data_set({name: read_jsonl(RWKU_DIR / f"{name}.jsonl")})
    commit = hub.push("dataset", "some/rows", files)
    for file, content in files.items():
        path = tmp_path / "copy" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    split = RWKU_CONFIGS[name]
    theirs = load_dataset(
        str(tmp_path / "copy"), name, split=split, cache_dir=str(tmp_path / "theirs")
    )
    assert isinstance(theirs, Dataset) and len(theirs) > 100
    source = {"repo": "some/rows", "revision": commit}
    assert list(read_hub(source, name, split)) == theirs.to_list()


@pytest.mark.parametrize(
    "load, part",
    [(load_tokenizer, "tokenizer"), (context_window, "configuration"), (load_model, "weights")],
)
def test_a_model_that_is_not_in_the_cache_is_named_with_the_command(
    tmp_path, monkeypatch, load, part
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    commit = "0" * 40
    with pytest.raises(UserError) as caught:
        load({"location": "some/model", "revision": commit, "dtype": "float32"})
    message = str(caught.value)
    assert message.startswith(f"models: {part} of some/model at {commit}: ")
    assert message.endswith("with `make prefetch`; jobs need the same HF_HOME.")
    assert "\n" not in message


def test_a_model_folder_is_not_on_the_hub(tmp_path) -> None:
    with pytest.raises(UserError) as caught:
        context_window({"location": str(tmp_path), "revision": None})
    assert str(caught.value).startswith(f"models: configuration of {tmp_path}: ")
    assert "prefetch" not in str(caught.value)
