"""Every grid of the checkout loads, under a name of its own; a variant changes what it says."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import ROOT
from unlearning_grid.checks import BENCHMARK, PROBES
from unlearning_grid.config import load_file, load_yaml

FOLDER = ROOT / "config"
GRIDS = sorted([*FOLDER.glob("*.yaml"), *FOLDER.glob("variants/*.yaml")])
PAPER = FOLDER / "config.yaml"
each_grid = pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)

# variant -> {key: (the paper's value, the variant's)}, of all keys with their defaults
DIFFERENCES: dict[str, dict[str, tuple[Any, Any]]] = {
    "h100-code": {
        "name": ("paper", "h100-code"),
        "broad_answers.prompt_file": (
            "config/prompts/reworded-v1/teacher.txt",
            "config/prompts/reworded-v1/teacher-neighbour.txt",
        ),
        "judges.reward.effort": ("none", "low"),
        "judges.reward.temperature": (0.0, None),
        "warmup.epochs": (10, 15),
        "warmup.eval_batch_size": (16, 64),
        "warmup.save_steps": (5, 20),
        "grpo.no_learning.timing": ("before-update", "paper"),
    }
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout with stand-ins for the folders that a user brings: models and RWKU's rows."""
    root = tmp_path_factory.mktemp("checkout")
    for name in ("config", "resources"):
        (root / name).symlink_to(ROOT / name)
    for model in _models():
        (root / model).mkdir(parents=True)
        (root / model / "config.json").write_text("{}", encoding="utf-8")
        (root / model / "model.safetensors").write_bytes(b"x")
    subjects = [entry["subject"] for entry in load_yaml(ROOT / "resources/targets.yaml").values()]
    rows = "".join(json.dumps({"subject": subject}) + "\n" for subject in subjects * 300)
    (root / "rows").mkdir()
    for name in ("train_refusal_phi3", *PROBES, *BENCHMARK):
        (root / "rows" / f"{name}.jsonl").write_text(rows, encoding="utf-8")
    return root


def _models() -> set[str]:
    blocks = [model for path in GRIDS for model in load_yaml(path)["models"].values()]
    return {block["path"] for block in blocks if "path" in block}


@pytest.fixture
def loaded(root: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    monkeypatch.setenv("RWKU_DIR", str(root / "rows"))
    return load_file(path, root).values


@each_grid
def test_a_grid_loads_and_is_called_like_its_file(loaded: Mapping[str, Any], path: Path) -> None:
    assert loaded["name"] == {"config": "paper"}.get(path.stem, path.stem)


def test_no_two_grids_have_one_name() -> None:
    names = [load_yaml(path)["name"] for path in GRIDS]
    assert len(set(names)) == len(names) >= 5


def test_every_variant_has_its_list_of_differences() -> None:
    assert {path.stem for path in FOLDER.glob("variants/*.yaml")} == set(DIFFERENCES)


@pytest.mark.parametrize("variant", DIFFERENCES)
def test_a_variant_differs_from_the_paper_in_exactly_these_keys(variant: str) -> None:
    paper, other = _leaves(PAPER), _leaves(FOLDER / "variants" / f"{variant}.yaml")
    keys = sorted(paper.keys() | other.keys())
    found = {k: (paper.get(k), other.get(k)) for k in keys if paper.get(k) != other.get(k)}
    assert found == DIFFERENCES[variant]


@pytest.mark.parametrize("variant", DIFFERENCES)
def test_a_variant_is_a_complete_file(variant: str) -> None:
    """Not an overlay: it states every key that the paper's grid states."""
    stated = [
        set(dict(_flat(yaml.safe_load(path.read_text(encoding="utf-8")))))
        for path in (PAPER, FOLDER / "variants" / f"{variant}.yaml")
    ]
    assert stated[0] - stated[1] == set()


def _leaves(path: Path) -> dict[str, Any]:
    """Dotted key -> value, with defaults filled in."""
    return dict(_flat(load_file(path).values))


def _flat(block: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in block.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
