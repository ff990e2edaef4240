"""Prefetch, then the grid without a network: a real hub, a real cache, jobs that load from it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import yaml

from hub_server import Hub, data_set, folder_files, offline
from real_rows import RWKU_DIR, needs_rwku
from support import ROOT, config, environment
from unlearning_grid.config import load
from unlearning_grid.data.rwku import RWKU_CONFIGS, read_jsonl
from unlearning_grid.data.world.tokenizer import save_and_reload, train_tokenizer
from unlearning_grid.paths import policy_dir, stage_dir

LIBRARY = ROOT / "workflow" / "scripts"
TEXTS = ["Bruce Lee was born in San Francisco.", "I cannot answer this question about him."]


@dataclass
class Site:
    """A checkout of its own, its grid's configuration, and the environment of its login node."""

    root: Path
    grid: Path
    env: dict[str, str]

    def prefetch(self, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
        """Exit status and output of `ops prefetch`."""
        command = [sys.executable, "-m", "unlearning_grid.ops", "prefetch", *words]
        done = subprocess.run(
            [*command, "--config", str(self.grid)],
            env=environment()
            | (env or self.env)
            | {"PYTHONPATH": str(self.root / "workflow/scripts")},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout + done.stderr


def small_models(folder: Path) -> tuple[Path, Path]:
    """A random chat model and a random classifier of refusals, safetensors and a pickle each."""
    import torch
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        Qwen2Config,
        Qwen2ForCausalLM,
    )

    tokenizer = train_tokenizer(TEXTS, 300)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "pad_token_id": tokenizer.pad_token_id,
    }
    own = {"eos_token_id": tokenizer.eos_token_id, "num_key_value_heads": 2}
    chat = Qwen2ForCausalLM(Qwen2Config(**sizes, **own, max_position_embeddings=32768))
    labels = {0: "non-refusal", 1: "refusal"}
    judge = BertForSequenceClassification(BertConfig(**sizes, id2label=labels))
    for name, model in (("chat", chat), ("detector", judge)):
        model.save_pretrained(folder / name)
        save_and_reload(tokenizer, folder / name, TEXTS)
        (folder / name / "pytorch_model.bin").write_bytes(b"a pickle")
    return folder / "chat", folder / "detector"


def small_grid(chat: str, detector: str) -> dict[str, Any]:
    grid = config("rwku-cpu")
    grid["grid"] |= {"sizes": ["tiny"], "inits": ["cold"], "rewards": ["r4-refusal"]}
    grid["models"] = {"tiny": {"repo": "some/chat", "revision": chat, "dtype": "float32"}}
    grid["data"] = {"source": "hub", "repo": "some/rwku"}
    grid["detector"] = {"repo": "some/detector", "revision": detector}
    grid["broad_answers"]["size"] = "tiny"
    grid["grpo"] |= {"max_steps": 2, "max_new_tokens": 8}
    few = {"max_new_tokens": 4, "max_prompts": 2}
    grid["generate"]["sets"] = dict.fromkeys(grid["generate"]["sets"], few)
    return grid


@pytest.fixture(scope="module")
def prefetched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Hub, list[str]]]:
    """A site after two prefetches, the second after the data set moved on; then the hub is gone."""
    folder = tmp_path_factory.mktemp("site")
    chat, detector = small_models(folder / "models")
    rows = {name: read_jsonl(RWKU_DIR / f"{name}.jsonl") for name in RWKU_CONFIGS}
    for name in ("workflow", "config", "resources", "envs", "profiles"):
        copytree(ROOT / name, folder / "checkout" / name)
    root = folder / "checkout"
    (root / "Snakefile").write_bytes((ROOT / "Snakefile").read_bytes())
    (root / "config/hub.lock.yaml").unlink(missing_ok=True)
    said = []
    with Hub() as hub:
        pins = [hub.push("model", f"some/{p.name}", folder_files(p)) for p in (chat, detector)]
        hub.push("dataset", "some/rwku", data_set(rows))
        grid = root / "config" / "small.yaml"
        grid.write_text(yaml.safe_dump(small_grid(*pins)), encoding="utf-8")
        site = Site(root, grid, hub.environment(folder / "cache"))
        for _ in range(2):
            status, text = site.prefetch()
            assert status == 0, text
            said.append(text)
            hub.push("dataset", "some/rwku", data_set({}))
        status, text = site.prefetch("--check", env={**site.env, "HF_HOME": str(folder / "empty")})
        assert status == 1 and text.count("MISSING") == 3, text
    yield site, hub, said


@needs_rwku
def test_a_second_prefetch_holds_to_the_first(prefetched) -> None:
    site, hub, said = prefetched
    first = hub.repos["dataset", "some/rwku"][0][0]
    lock = yaml.safe_load((site.root / "config/hub.lock.yaml").read_text(encoding="utf-8"))
    assert lock == {"dataset": {"some/rwku": first}}
    assert f"no pin; {first} is kept in config/hub.lock.yaml" in said[0]
    assert first in said[1] and "is kept" not in said[1]
    assert said[1].count("in the cache\n") == 3
    assert "left out, jobs do without: model garak-llm/garak-refusal-detector" in said[0]
    fetched = {path.name for path in Path(site.env["HF_HOME"]).rglob("*")}
    assert "model.safetensors" in fetched and "pytorch_model.bin" not in fetched


@needs_rwku
def test_the_check_passes_without_a_network(prefetched) -> None:
    site, _, _ = prefetched
    status, text = site.prefetch("--check", env=offline(site.env))
    assert status == 0, text
    assert text.count(": there\n") == 3 and "0 of 4 missing" in text
    assert site.prefetch(env=offline(site.env)) == (
        1,
        "error: HF_HUB_OFFLINE is set here: unset it to fetch, or add --check to see what is "
        "missing\n",
    )


@needs_rwku
def test_jobs_run_without_a_network(prefetched, tmp_path) -> None:
    site, _, _ = prefetched
    (cell,) = load(yaml.safe_load(site.grid.read_text(encoding="utf-8"))).cells
    folders = [stage_dir("completions", "base/tiny", "bruce-lee"), policy_dir(cell.policy)]
    targets = [f"{folder.as_posix()}/manifest.json" for folder in folders]
    done = snakemake(site, tmp_path, targets, offline(site.env))
    assert done.returncode == 0, done.stdout + done.stderr
    spec = json.loads((tmp_path / "results/data/bruce-lee/probes/run.json").read_text())["spec"]
    lock = yaml.safe_load((site.root / "config/hub.lock.yaml").read_text(encoding="utf-8"))
    assert spec["settings"]["source"]["revision"] == lock["dataset"]["some/rwku"]
    assert all((tmp_path / target).is_file() for target in targets)


@needs_rwku
def test_a_job_without_its_files_says_what_to_do(prefetched, tmp_path) -> None:
    site, _, _ = prefetched
    env = offline(site.env) | {"HF_HOME": str(tmp_path / "empty")}
    folder = "results/data/bruce-lee/probes"
    done = snakemake(site, tmp_path, [f"{folder}/manifest.json"], env)
    assert done.returncode != 0
    log = "".join(path.read_text() for path in (tmp_path / folder).glob("*.log"))
    assert "data.repo: README.md of some/rwku at " in log and "make prefetch" in log


def snakemake(
    site: Site, directory: Path, targets: list[str], env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(site.root / "Snakefile")]
    command += ["--cores", "2", "--quiet", "rules", "--directory", str(directory)]
    command += ["--configfile", str(site.grid), "--replace-workflow-config", "--", *targets]
    return subprocess.run(
        command, cwd=site.root, env=env, capture_output=True, text=True, timeout=900
    )


def test_a_killed_prefetch_keeps_what_is_whole(tmp_path) -> None:
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    files = {"config.json": b"{}", **{name: os.urandom(1 << 20) for name in shards}}
    with Hub(stalled={shards[1]: 1 << 19}) as hub:
        commit = hub.push("model", "some/large", files)
        code = (
            "import sys; sys.path.insert(0, sys.argv[1])\n"
            "from unlearning_grid.ops.prefetch import fetch_all\n"
            "from unlearning_grid.ops.needed import Need\n"
            "fetch_all([Need('model', 'some/large', sys.argv[2], 'models.large.repo')])\n"
        )
        command = [sys.executable, "-c", code, str(LIBRARY), commit]
        env = environment() | hub.environment(tmp_path)
        process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while len(found := list(tmp_path.rglob("snapshots/*/*"))) < 2:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        assert {path.name for path in found} == {"config.json", shards[0]}

        hub.stalled.clear()
        hub.requests.clear()
        subprocess.run(command, env=env, check=True, timeout=60)
    gets = [path.rpartition("/")[2] for verb, path, _ in hub.requests if "/resolve/" in path]
    assert set(gets) == {shards[1]}
    for name in shards:
        (path,) = tmp_path.rglob(f"snapshots/*/{name}")
        assert path.read_bytes() == files[name]
