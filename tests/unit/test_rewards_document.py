"""docs/rewards.md: its worked example runs, its table is complete."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import yaml

from support import ROOT, config
from unlearning_grid import config as configuration
from unlearning_grid.rewards import registry
from unlearning_grid.rewards.base import RewardContext

DOCUMENT = (ROOT / "docs" / "rewards.md").read_text(encoding="utf-8")
NAME = "harmonic-lex"


@pytest.fixture
def blocks() -> list[str]:
    """Module, registry line, configuration block and schema block of the example."""
    section = DOCUMENT.partition("## Add a reward")[2].partition("\n## ")[0]
    found = re.findall(r"```(?:python|yaml)\n(.*?)```", section, re.DOTALL)
    assert len(found) == 4
    return found


def test_the_worked_example(
    blocks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, line, config_block, schema_block = blocks
    # The module, where the text says it goes.
    dotted = "unlearning_grid.rewards.harmonic"
    assert f"`workflow/scripts/{dotted.replace('.', '/')}.py`" in DOCUMENT
    path = tmp_path / "harmonic.py"
    path.write_text(module, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(dotted, path)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, dotted, loaded)
    spec.loader.exec_module(loaded)
    # Its line in the registry.
    ((name, place),) = re.findall(r'^"(.*)": "(.*)",$', line, re.MULTILINE)
    monkeypatch.setitem(registry.REWARDS, name, place)
    assert registry.load(NAME).name == name == NAME
    # Its block in the configuration, then in the schema too.
    added = yaml.safe_load(config_block)
    raw = config("demo")
    raw["grid"]["rewards"] = added["grid"]["rewards"]
    raw["rewards"] = added["rewards"]
    assert configuration.load(raw)["rewards"][NAME] == {"power": 2}
    schema = yaml.safe_load(configuration.SCHEMA.read_text(encoding="utf-8"))
    schema["properties"]["rewards"]["properties"] |= yaml.safe_load(schema_block)
    changed = tmp_path / "schema.yaml"
    changed.write_text(yaml.safe_dump(schema), encoding="utf-8")
    monkeypatch.setattr(configuration, "SCHEMA", changed)
    settings = configuration.load(raw)["rewards"][NAME]
    assert settings == {"power": 2, "convention": "paper"}
    # The reward itself, with and without the schema's defaults.
    context = RewardContext("Karl Marx", terms=["Karl Marx", "London"])
    scores = registry.load(NAME)(settings, context).score(["q"] * 2, ["Karl Marx, London", "?"])
    bare = registry.load(NAME)({"power": 2}, context).score(["q"] * 2, ["Karl Marx, London", "?"])
    assert bare == scores
    assert scores.values == [pytest.approx(1 / 9), 1.0]
    assert scores.columns["lexical_hits"] == [2, 0]


def test_the_table_names_every_reward() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", DOCUMENT, re.MULTILINE)
    assert set(registry.REWARDS) <= set(rows)
    schema = yaml.safe_load(configuration.SCHEMA.read_text(encoding="utf-8"))
    assert set(schema["properties"]["rewards"]["properties"]) == set(registry.REWARDS)
