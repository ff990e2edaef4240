"""Every key of the configuration is in the specs of the stages of its line in key_table.py."""

import os
import shutil
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from invalidation.key_table import ELSEWHERE, KEYS, PROMPTS, PROMPTS_FOLDER, VARIANTS, wide
from invalidation.module_table import stages_of
from support import ROOT
from unlearning_grid.checks import config_names
from unlearning_grid.config import Config, load, load_yaml
from unlearning_grid.spec.hub import LOCK
from unlearning_grid.spec.plan import planned
from unlearning_grid.spec.stages import Specs

SCHEMA = load_yaml(ROOT / "workflow" / "schemas" / "config.schema.yaml")
Digests = dict[tuple[str, str], str]

# Other values, where a type alone does not give one that a stage can use.
VALUES: dict[str, Any] = {
    "audit.judge": "lower-bound",
    "terminal_audit.judge": "lower-bound",
    "terminal_audit.labels": "five",
    "rewards.r2-rubric.judge": "audit",
    "broad_answers.judge": "reward",
    "broad_answers.prompt_file": f"{PROMPTS_FOLDER}/teacher-neighbour.txt",
    "broad_answers.size": "small",
    "broad_answers.provider": "rules",
    "detector.train.size": "small",
    "term_weights.size": "small",
    "data.source": "hub",
}
PROMPT_FILE = f"{PROMPTS_FOLDER}/audit-five.txt"


def leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the keys that hold a value."""
    if not isinstance(values, Mapping):
        yield path
        return
    for name, inside in values.items():
        yield from leaves(inside, (*path, name))


def schema_leaves(block: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the schema's keys that hold a value, `{name}` for a name of one's own."""
    inside = dict(block.get("properties", {}))
    if path in (("models",), ("judges",)):
        inside["{name}"] = block["additionalProperties"]
    for name, entry_ in inside.items():
        if "properties" in entry_ or (*path, name) in (("models",), ("judges",)):
            yield from schema_leaves(entry_, (*path, name))
        else:
            yield (*path, name)


def entry(path: tuple[str, ...]) -> Mapping[str, Any]:
    """What the schema says about a key."""
    found: Any = SCHEMA
    for name in path:
        found = found.get("properties", {}).get(name) or found["additionalProperties"]
    return found


def another(path: tuple[str, ...], value: Any) -> Any:
    """Another value for a key; None where the schema knows no other."""
    key, kind = ".".join(path), entry(path)
    if key in VALUES:
        return VALUES[key]
    if path[-1] == "prompt_file":
        return PROMPT_FILE
    if "enum" in kind:
        return next((other for other in kind["enum"] if other != value), None)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return value[1:] + value[:1] if len(value) > 1 else []
    if isinstance(value, str):
        return value + "x"
    return 7 if "integer" in kind["type"] else 0.5 if "number" in kind["type"] else "x"


def general(path: tuple[str, ...]) -> tuple[str, ...]:
    """The path with `{name}` where the configuration's author chooses a name."""
    return (path[0], "{name}", *path[2:]) if path[0] in ("models", "judges") else path


def line_of(path: tuple[str, ...], lines: Mapping[str, str]) -> str | None:
    """The line that counts for a key: its own, else that of the smallest block around it."""
    for names in (path, general(path)):
        if ".".join(names) in lines:
            return ".".join(names)
    blocks = (".".join((*path[:end], "*")) for end in range(len(path) - 1, 0, -1))
    return next((block for block in blocks if block in lines), None)


def is_elsewhere(path: tuple[str, ...]) -> bool:
    names = {".".join(path[:end]) for end in range(1, len(path) + 1)}
    return bool((names | {".".join(general(path))}) & set(ELSEWHERE))


def digests(config: Config) -> Digests:
    """(stage with its reward or judge, folder) -> digest of the spec."""
    specs = Specs(config)
    found = {}
    for folder, rule, cell in planned(specs):
        more = cell.get("reward") or cell.get("judge")
        found[f"{rule}:{more}" if more else rule, folder] = specs.digest(rule, **cell)
    return found


def changed(before: Digests, after: Digests) -> set[str]:
    """Stages of the results that both grids have and whose specs differ."""
    return {
        stage
        for (stage, folder), found in after.items()
        if (stage, folder) in before and before[stage, folder] != found
    }


def written_out(words: str, known: Digests) -> set[str]:
    """The stages of a line, `train_grpo` as the cells of every reward."""
    stages = stages_of(words)
    names = {stage for stage, _ in known}
    unknown = {stage for stage in stages if not {n for n in names if n.startswith(stage)}}
    assert not unknown, f"no such stage: {unknown}"
    return {name for name in names if name in stages or name.partition(":")[0] in stages}


def merged(raw: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with some blocks changed; a block of one of several forms is replaced."""
    for name, value in more.items():
        forms = {"repo", "train", "build"} & set(raw.get(name, {}))
        if isinstance(value, Mapping) and isinstance(raw.get(name), dict) and not forms:
            merged(raw[name], value)
        else:
            raw[name] = value
    return raw


WIDE = load(wide())
BEFORE = digests(WIDE)


def paths_of(config: Config) -> list[tuple[str, ...]]:
    """Keys whose edits are tested here."""
    return [path for path in leaves(config.values) if path and not is_elsewhere(path)]


def set_to(config: Config, path: tuple[str, ...], value: Any) -> Config:
    """The configuration with one key set, unchecked."""
    values = deepcopy(dict(config.values))
    block: Any = values
    for name in path[:-1]:
        block = block[name]
    block[path[-1]] = value
    return Config(values, config.root)


def check(config: Config, before: Digests, path: tuple[str, ...], line: str) -> None:
    """The specs that hold the key are those of the line."""
    value: Any = config.values
    for name in path:
        value = value[name]
    other = another(path, value)
    assert other is not None and other != value
    after = digests(set_to(config, path, other))
    assert changed(before, after) == written_out(line, before)


def only_value(path: tuple[str, ...]) -> bool:
    return len(entry(path).get("enum", "several")) == 1


@pytest.mark.parametrize("path", [p for p in paths_of(WIDE) if not only_value(p)], ids=".".join)
def test_a_key_is_in_the_specs_of_its_line(path: tuple[str, ...]) -> None:
    line = line_of(path, KEYS)
    assert line, f"add a line for {'.'.join(path)} to tests/invalidation/key_table.py"
    check(WIDE, BEFORE, path, KEYS[line])


@pytest.mark.parametrize("name", VARIANTS)
def test_keys_of_another_kind_of_grid(name: str) -> None:
    blocks, lines = VARIANTS[name]
    variant = load(merged(wide(), blocks))
    before = digests(variant)
    tested = [path for path in paths_of(variant) if line_of(path, lines) and not only_value(path)]
    assert {line_of(path, lines) for path in tested} == set(lines)
    for path in tested:
        check(variant, before, path, lines[str(line_of(path, lines))])


def test_every_key_of_the_schema_is_tested() -> None:
    grids = [WIDE, *(load(merged(wide(), blocks)) for blocks, _ in VARIANTS.values())]
    tested = {general(path) for grid in grids for path in paths_of(grid)}
    known = {path for path in schema_leaves(SCHEMA) if not is_elsewhere(path)}
    assert known - tested == {("models", "{name}", "path")}  # test_the_files_of_a_path_count


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout's files beside the code, free to change."""
    for name in ("config", "resources", "envs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_prompt_is_in_the_specs_of_its_line(prompt: str, root: Path) -> None:
    path = root / PROMPTS_FOLDER / prompt
    text = path.read_text(encoding="utf-8")
    edited = (
        text.replace("missing words", "words left out") if "rwku" in prompt else text + "New.\n"
    )
    assert edited != text
    path.write_text(edited, encoding="utf-8")
    after = digests(Config(WIDE.values, root))
    assert changed(BEFORE, after) == written_out(PROMPTS[prompt], BEFORE)


def test_every_prompt_has_a_line() -> None:
    assert {path.name for path in (ROOT / PROMPTS_FOLDER).iterdir()} == set(PROMPTS)


@pytest.fixture
def rows(root: Path) -> Config:
    """The grid with rows from a folder, and with a model from one."""
    folders = {name: root / name for name in ("rows", "model")}
    for folder in folders.values():
        folder.mkdir()
    for name in config_names(WIDE):
        (folders["rows"] / f"{name}.jsonl").write_text('{"subject": "Bruce Lee"}\n')
    for name in ("config.json", "model.safetensors"):
        (folders["model"] / name).write_text("{}")
    values = deepcopy(dict(WIDE.values))
    values["data"] |= {"source": "path", "path": "rows"}
    values["models"]["tiny"] = {"path": "model", "dtype": "float32"}
    return Config(values, root)


def test_the_commit_in_the_lock_file_counts(root: Path) -> None:
    """Where the configuration pins no commit of the rows."""
    values = deepcopy(dict(WIDE.values))
    values["data"] |= {"source": "hub", "revision": None}
    config = Config(values, root)
    before = digests(config)
    (root / LOCK).write_text(f"dataset: {{{values['data']['repo']}: {'1' * 40}}}\n")
    assert changed(before, digests(config)) == {"load_rows"}


def test_the_files_of_a_path_count(rows: Config) -> None:
    before = digests(rows)
    (rows.root / "model" / "model.safetensors").write_text("[]")
    model = KEYS["models.tiny.*"]
    assert changed(before, digests(rows)) == written_out(model, before)
    before = digests(rows)
    for path in rows.root.rglob("*.jsonl"):
        os.utime(path)
    assert changed(before, digests(rows)) == set()
    with open(rows.root / "rows" / "utility_general.jsonl", "a") as handle:
        handle.write("{}\n")
    after = digests(rows)
    parts = [folder for (_, folder), found in after.items() if found not in before.values()]
    assert parts == ["results/data/bruce-lee/benchmark"]
