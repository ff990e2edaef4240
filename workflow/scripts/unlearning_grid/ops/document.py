"""config/README.md, written from the schema so that the two cannot disagree."""

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from unlearning_grid.config import ROOT, SCHEMA, load_yaml

HEAD = """# Configuration

Made from `workflow/schemas/config.schema.yaml` by `make docs`; edit the schema, not this file.

A grid is one complete file. `config.yaml` is the paper's; another one is run with
`--configfile FILE`. Keys left out take the default. Every problem is
reported before a job starts, with its key. Threads, GPUs, time limits and accounts are no facts of
an experiment: they stand in `profiles/`.

| file | grid |
| --- | --- |
| `config.yaml` | the paper's: ten targets, four sizes, two inits, four rewards |
| `variants/h100-code.yaml` | the same with the values of the authors' H100 code |
| `demo.yaml` | the embedded world, on a laptop (`make demo`) |
| `micro.yaml` | the smallest grid that runs every rule, for tests |
| `rwku-cpu.yaml` | real RWKU rows, a real small model, a CPU (`make rwku-cpu`) |
| `rwku-cpu-full.yaml` | the same with every row of the benchmark (`make rwku-cpu FULL=1`) |
"""


def add_parser(commands: Any, _common: argparse.ArgumentParser) -> None:
    """Add the command `document`."""
    parser = commands.add_parser("document", help="write config/README.md from the schema")
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> None:
    (ROOT / "config" / "README.md").write_text(config_manual(), encoding="utf-8")


def config_manual() -> str:
    """The manual's text."""
    schema = load_yaml(SCHEMA)
    lines = [HEAD]
    for block, sub in schema["properties"].items():
        lines.append(f"\n## `{block}`\n\n{sub['description'].strip()}\n")
        rows = list(_rows(block, sub, block in schema["required"]))
        lines.append("| key | type | default | meaning |\n| --- | --- | --- | --- |")
        lines += rows
    return "\n".join(lines) + "\n"


def _rows(path: str, schema: Mapping[str, Any], required: bool) -> Iterator[str]:
    children = schema.get("properties")
    extra = schema.get("additionalProperties")
    if children:
        needed = schema.get("required", [])
        for name, sub in children.items():
            if "properties" in sub and path.count(".") < 4:
                yield f"| `{path}.{name}` | block | | {_text(sub)} |"
            yield from _rows(f"{path}.{name}", sub, name in needed)
    elif isinstance(extra, Mapping):
        yield from _rows(f"{path}.NAME", extra, True)
    elif "items" in schema and "properties" in schema["items"]:
        yield f"| `{path}` | list | {_default(schema, required)} | {_text(schema)} |"
        yield from _rows(f"{path}[]", schema["items"], False)
    elif "properties" not in schema:
        yield f"| `{path}` | {_type(schema)} | {_default(schema, required)} | {_text(schema)} |"


def _text(schema: Mapping[str, Any]) -> str:
    return " ".join(schema["description"].split()).replace("|", "\\|")


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "")
    if kind == "array":
        return "list of " + _type(schema["items"])
    return " or ".join(kind) if isinstance(kind, list) else kind


def _default(schema: Mapping[str, Any], required: bool) -> str:
    if "default" in schema:
        return f"`{json.dumps(schema['default'])}`"
    return "required" if required else ""
