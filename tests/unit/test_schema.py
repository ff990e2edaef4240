"""The schema of configurations: closed, described, and in step with the paper's grid."""

from typing import Any

from jsonschema import Draft202012Validator

from support import config
from unlearning_grid.config import SCHEMA, load_yaml


def nodes(schema: Any, path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """(key path, schema) of every property, list item and named entry."""
    found = []
    for key, sub in schema.get("properties", {}).items():
        found += [(f"{path}.{key}".lstrip("."), sub), *nodes(sub, f"{path}.{key}")]
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found += nodes(schema[key], f"{path}[]")
            if "properties" in schema[key]:
                found.append((f"{path}[]", schema[key]))
    return found


SCHEMA_TEXT: dict[str, Any] = load_yaml(SCHEMA)
NODES = nodes(SCHEMA_TEXT)


def test_the_schema_is_a_schema_and_its_defaults_fit_it() -> None:
    Draft202012Validator.check_schema(SCHEMA_TEXT)
    for path, schema in NODES:
        if "default" in schema and schema["default"] != {}:  # {} stands for the keys' own defaults
            assert Draft202012Validator(schema).is_valid(schema["default"]), path


def test_every_property_has_a_description() -> None:
    assert len(NODES) > 100
    lacking = [
        path
        for path, schema in NODES
        if not path.endswith("[]") and not schema.get("description", "").strip().endswith(".")
    ]
    assert not lacking, "each ends with a full stop; quote one that holds a comma"


def test_the_schema_uses_known_words_only() -> None:
    """An unquoted comma in a description cuts it short and leaves the rest as a keyword."""
    known = {*Draft202012Validator.VALIDATORS, "default", "description"}
    strays = {path: sorted(set(schema) - known) for path, schema in NODES}
    assert not {path: words for path, words in strays.items() if words}


def test_no_block_takes_unknown_keys() -> None:
    for path, schema in [("", SCHEMA_TEXT), *NODES]:
        if "properties" in schema and path != "rewards":  # names are checked in the registry
            assert schema.get("additionalProperties") is False, path


def test_a_key_has_a_default_or_must_be_there_or_may_be_absent_by_design() -> None:
    optional = {
        "data.path", "detector.repo", "detector.revision", "detector.train", "detector.train.size",
    }  # fmt: skip
    for path, schema in NODES:
        parent = dict(NODES).get(path.rpartition(".")[0], SCHEMA_TEXT)
        needed = path.rpartition(".")[2] in parent.get("required", [])
        free = path in optional or "[]" in path
        assert "default" in schema or needed or free, path


def test_the_papers_grid_states_the_defaults() -> None:
    """`config/config.yaml` writes the paper's values out; the schema's defaults are the same."""
    raw = config("config")
    compared = 0
    for path, schema in NODES:
        value: Any = raw
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        block = "properties" in schema or path.startswith("sampled_audit.")  # not the paper's
        if value is not None and "default" in schema and not block:
            assert value == schema["default"], path
            compared += 1
    assert compared > 50
