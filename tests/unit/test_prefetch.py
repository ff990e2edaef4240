"""Prefetch against a real hub on localhost: pins, the lock file, the disk, and what can fail."""

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hub_server import Hub, data_set, use
from support import ROOT, config
from unlearning_grid.config import load
from unlearning_grid.data.rwku import RWKU_CONFIGS
from unlearning_grid.errors import UserError
from unlearning_grid.ops import prefetch
from unlearning_grid.ops.needed import Need, needs
from unlearning_grid.spec.hub import LOCK, locked
from unlearning_grid.spec.sources import rows_facts
from unlearning_grid.spec.stages import Specs

ROWS = [
    {"query": "Who is ___?", "answer": answer, "level": "1", "type": "cloze", "subject": "A Person"}
    for answer in ("A Person", "Nobody")
]
MODEL = {
    "config.json": b'{"model_type": "x"}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"s" * 3000,
    "pytorch_model.bin": b"p" * 7000,
    "consolidated.safetensors": b"c" * 7000,
    "onnx/model.safetensors": b"o" * 7000,
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one model and one data set, and an empty cache, for this process."""
    with Hub() as hub:
        use(monkeypatch, hub.address, tmp_path / "hub")
        hub.push("model", "some/model", MODEL)
        hub.push("dataset", "some/rows", data_set({"forget_level1": ROWS, "forget_level2": []}))
        yield hub


def model(hub: Hub, **changes: Any) -> Need:
    commit = hub.repos["model", "some/model"][0][0]
    facts = {"kind": "model", "repo": "some/model", "revision": commit, "key": "models.tiny.repo"}
    return Need(**{**facts, "optional": False, **changes})


def rows(**changes: Any) -> Need:
    facts = {"kind": "dataset", "repo": "some/rows", "revision": None, "key": "data.repo"}
    configs = {"forget_level1"}
    return Need(**{**facts, "configs": configs, "jobs": {"a", "b"}, "optional": False, **changes})


def names(cache: Path, kind: str, repo: str) -> set[str]:
    (snapshot,) = (cache / f"{kind}s--{repo.replace('/', '--')}" / "snapshots").iterdir()
    return {p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file()}


def test_only_what_the_loaders_read_is_fetched(hub, tmp_path, capsys) -> None:
    wanted = [model(hub), rows()]
    prefetch.pin(wanted, tmp_path)
    prefetch.fetch_all(wanted)
    cache = tmp_path / "hub"
    assert names(cache, "model", "some/model") == {
        "config.json",
        "tokenizer.json",
        "model.safetensors",
    }
    assert names(cache, "dataset", "some/rows") == {"README.md", "All/of_forget_level1.json"}
    shown = capsys.readouterr().out
    assert "3 files, 3.0 kB, 3.0 kB to fetch" in shown and "export HF_HUB_OFFLINE=1" in shown

    hub.requests.clear()
    prefetch.fetch_all(wanted)
    assert hub.requests == []
    assert "3 files, 3.0 kB, in the cache" in capsys.readouterr().out


def test_the_newest_is_looked_up_once_and_kept(hub, tmp_path, capsys) -> None:
    (first, _) = hub.repos["dataset", "some/rows"][0]
    prefetch.pin([rows()], tmp_path)
    text = (tmp_path / LOCK).read_text(encoding="utf-8")
    assert text.endswith(f"dataset:\n  some/rows: {first}\n") and text.startswith("# Commits")

    moved = hub.push("dataset", "some/rows", data_set({"forget_level1": ROWS[:1]}))
    written = rows(revision=first)
    prefetch.pin([written], tmp_path, update=True)
    assert written.revision == first, "a commit in the configuration stays"
    held = replace(rows(revision=locked(tmp_path, "dataset", "some/rows")), locked=True)
    prefetch.pin([held], tmp_path)
    assert held.revision == first
    assert (tmp_path / LOCK).read_text(encoding="utf-8") == text

    capsys.readouterr()
    prefetch.pin([held], tmp_path, update=True)
    assert held.revision == moved == locked(tmp_path, "dataset", "some/rows")
    assert f"{first} -> {moved} in {LOCK}; 2 job(s)" in capsys.readouterr().out


def test_an_update_leaves_a_pin_of_the_configuration(hub, tmp_path) -> None:
    commit = hub.repos["model", "some/model"][0][0]
    hub.push("model", "some/model", MODEL)
    need = model(hub)
    prefetch.pin([need], tmp_path, update=True)
    assert need.revision == commit and not (tmp_path / LOCK).exists()


def test_specs_hold_to_the_lock_and_a_pin_goes_before_it(tmp_path) -> None:
    for folder in ("config", "resources"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / LOCK).unlink(missing_ok=True)
    raw = config("config")

    def revision(**changes: Any) -> Any:
        made = load({**raw, "data": {**raw["data"], **changes}}, tmp_path)
        return rows_facts(made, ["forget_level1"])["revision"]

    assert revision() is None
    held = {"dataset": {"jinzhuoran/RWKU": "a" * 40, "other/rows": "b" * 40}}
    (tmp_path / LOCK).write_text(json.dumps(held), encoding="utf-8")
    assert revision() == "a" * 40
    assert revision(revision="c" * 40) == "c" * 40
    assert revision(repo="other/rows") == "b" * 40
    assert revision(repo="third/rows") is None
    (tmp_path / LOCK).write_text("dataset: {jinzhuoran/RWKU: main}\n", encoding="utf-8")
    with pytest.raises(UserError, match="hub.lock.yaml: must map kind and repository to a commit"):
        revision()


def test_the_papers_grid_needs_four_models_the_detector_and_rwku() -> None:
    found = needs(Specs(load(config("config"))))
    assert [(need.kind, need.repo, need.key) for need in found] == [
        ("model", "Qwen/Qwen2.5-0.5B-Instruct", "models.0.5b.repo"),
        ("model", "Qwen/Qwen2.5-1.5B-Instruct", "models.1.5b.repo"),
        ("model", "Qwen/Qwen2.5-3B-Instruct", "models.3b.repo"),
        ("model", "Qwen/Qwen2.5-7B-Instruct", "models.7b.repo"),
        ("model", "garak-llm/garak-refusal-detector", "detector.repo"),
        ("dataset", "jinzhuoran/RWKU", "data.repo"),
    ]
    assert found[-1].configs == set(RWKU_CONFIGS) - {
        "forget_target",
        "train_original_passage",
        "train_refusal_llama3",
    }
    assert len(found[-1].jobs) == 30 and not any(need.optional for need in found)


def test_a_served_judge_and_an_encoder_are_needed_where_they_are_used() -> None:
    raw = config("micro")
    raw["grid"]["rewards"] = ["pagerank-lex"]
    raw["term_weights"] = {"repo": "some/encoder", "revision": "e" * 40}
    served = {"provider": "openai", "model": "some/judge", "revision": "d" * 40}
    raw["judges"]["audit"] = {**served, "base_url": "cluster:one"}
    raw["sampled_audit"]["judge"] = "lower-bound"
    raw["judges"]["audit"]["prompt_file"] = "config/prompts/reworded-v1/audit-six.txt"
    found = {(need.repo, need.revision): need for need in needs(Specs(load(raw)))}
    assert found["some/encoder", "e" * 40].key == "term_weights.repo"
    assert found["some/judge", "d" * 40].key == "judges.audit.model"
    assert found["garak-llm/garak-refusal-detector", "5cb5ec8f364318cc48724ddf8ad414000c36781b"]
    assert [need.repo for need in found.values() if need.optional] == [
        "garak-llm/garak-refusal-detector"
    ]


# ---- what can go wrong --------------------------------------------------------------------------


def test_a_full_disk_is_told_before_anything_is_fetched(hub, tmp_path) -> None:
    hub.pretended["model.safetensors"] = 10**15
    with pytest.raises(
        UserError, match=r"1000000\.0 GB are needed in .*hub, .* are free; .*HF_HOME"
    ):
        prefetch.fetch_all([model(hub)])
    assert not list((tmp_path / "hub").rglob("*.safetensors"))


def refuse(status: int, code: str) -> Callable[[Hub], None]:
    return lambda hub: hub.refused.update({"some/model": (status, code)})


@pytest.mark.parametrize(
    "break_it, expected",
    [
        (
            lambda hub: hub.repos.clear(),
            "is not there, or private: check the name, or export HF_TOKEN",
        ),
        (refuse(401, "GatedRepo"), "is gated: accept its terms on its page, then export HF_TOKEN"),
        (refuse(403, "GatedRepo"), "is gated: accept its terms on its page, then export HF_TOKEN"),
        (refuse(403, ""), "is refused to you: export HF_TOKEN with a token that may read it"),
        (refuse(404, "RevisionNotFound"), "has no such commit"),
    ],
)
def test_a_refusal_names_the_key_and_the_fix_and_no_token(
    hub, monkeypatch, break_it, expected
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN", "hf_secret", raising=False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    need = model(hub)
    break_it(hub)
    with pytest.raises(UserError) as caught:
        prefetch.fetch_all([need])
    message = str(caught.value)
    assert message.startswith(f"model some/model at {need.revision} (models.tiny.repo) {expected}")
    assert "hf_secret" not in message


def test_a_gated_data_set_is_told_as_a_model_is(hub) -> None:
    commit = hub.repos["dataset", "some/rows"][0][0]
    hub.refused["some/rows"] = (401, "GatedRepo")
    with pytest.raises(UserError, match="^dataset some/rows at .*data.repo. is gated: .*HF_TOKEN"):
        prefetch.fetch_all([rows(revision=commit)])


def test_a_broken_connection_is_taken_up_where_it_broke(hub, tmp_path) -> None:
    whole = bytes(range(256)) * (11 << 12)  # 11 MiB; the client keeps pieces of ten
    commit = hub.push("model", "some/model", {**MODEL, "model.safetensors": whole})
    hub.cut["model.safetensors"] = (10 << 20) + 1000
    prefetch.fetch_all([model(hub, revision=commit)])
    (path,) = (tmp_path / "hub").rglob("model.safetensors")
    assert path.read_bytes() == whole
    asked = [span for verb, path, span in hub.requests if verb == "GET" and "safetens" in path]
    assert asked == [None, f"bytes={10 << 20}-"]


def test_pickles_alone_are_no_weights(hub) -> None:
    commit = hub.push("model", "some/model", {"pytorch_model.bin": b"p", "config.json": b"{}"})
    with pytest.raises(UserError, match="ships no weights as safetensors"):
        prefetch.fetch_all([model(hub, revision=commit)])


def test_a_hub_out_of_reach_is_told(tmp_path, monkeypatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    use(monkeypatch, address, tmp_path / "hub")
    with pytest.raises(UserError, match="data.repo. cannot be had .*HTTPS_PROXY .*HF_ENDPOINT"):
        prefetch.pin([rows()], tmp_path)
    assert not (tmp_path / LOCK).exists()


# ---- the check ----------------------------------------------------------------------------------


def test_the_check_asks_nobody_and_fails_when_a_job_would(hub, tmp_path, capsys) -> None:
    commit = hub.repos["dataset", "some/rows"][0][0]
    wanted = [model(hub), rows(revision=commit)]
    assert prefetch.check(wanted) == 1
    assert capsys.readouterr().out.count(": MISSING") == 2
    prefetch.fetch_all(wanted)
    hub.requests.clear()
    capsys.readouterr()
    assert prefetch.check(wanted) == 0
    assert capsys.readouterr().out.count(": there\n") == 2

    (weights,) = (tmp_path / "hub").rglob("model.safetensors")
    weights.unlink()
    assert prefetch.check(wanted) == 1
    assert "models.tiny.repo): MISSING (incomplete)" in capsys.readouterr().out
    assert prefetch.check([model(hub, optional=True)]) == 0
    assert "missing, optional (incomplete)" in capsys.readouterr().out
    more = rows(revision=commit, configs={"forget_level1", "forget_level2"})
    assert prefetch.missing(more) == "incomplete"
    assert prefetch.missing(rows()) == f"no commit in the configuration or in {LOCK}"
    assert hub.requests == []


def test_a_cache_that_another_tool_filled_is_looked_at_file_by_file(hub, tmp_path) -> None:
    from huggingface_hub import hf_hub_download

    need = model(hub)
    for name in ("config.json", "model.safetensors"):
        hf_hub_download("some/model", name, revision=need.revision)
    assert prefetch.missing(need) == ""
    (path,) = (tmp_path / "hub").rglob("config.json")
    path.unlink()
    assert prefetch.missing(need) == "no list of its files; fetch it once"
