"""The configuration: defaults from the schema, then every problem at once, with its key path.

Two layers. The JSON schema knows keys, types and ranges; the checks here know what must fit
together. Nothing is run before both are satisfied.
"""

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from unlearning_grid.errors import UserError
from unlearning_grid.grid import Cell, expand

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = ROOT / "workflow" / "schemas" / "config.schema.yaml"


@dataclass(frozen=True)
class Config:
    """A checked configuration.

    Attributes:
        values: the configuration with every default filled in.
        root: the checkout; files named in `values` lie relative to it.
    """

    values: Mapping[str, Any]
    root: Path

    def __getitem__(self, key: str) -> Any:
        return self.values[key]

    @cached_property
    def cells(self) -> list[Cell]:
        """Cells of the grid, in a stable order."""
        return expand(self["grid"])

    @cached_property
    def targets(self) -> dict[str, Any]:
        """Slug -> {subject, aliases} of every known target."""
        return load_yaml(self.file(self["resources"]["targets"]))

    @cached_property
    def terms(self) -> dict[str, dict[str, list[str]]]:
        """Slug -> {hard, soft} forbidden terms."""
        return load_yaml(self.file(self["resources"]["terms"]))

    def text(self, name: str) -> str:
        """Content of a text file of the checkout, a prompt for example."""
        return self.file(name).read_text(encoding="utf-8")

    def file(self, name: str) -> Path:
        """A path of the configuration: environment variables filled in, relative to the root."""
        return expand_path(name, self.root)


def expand_path(name: str, root: Path = ROOT) -> Path:
    """A path as a configuration writes it: variables filled in, relative to the checkout."""
    return root / os.path.expandvars(name)


def load(raw: Mapping[str, Any], root: Path = ROOT) -> Config:
    """Fill in defaults and check.

    Raises UserError that lists every problem: key, value, what is allowed, and the fix.
    """
    from unlearning_grid.checks import problems  # the semantic layer needs Config itself

    schema = load_yaml(SCHEMA)
    values = deepcopy(dict(raw))
    errors = sorted(_schema_problems(values, schema))
    if not errors:
        fill_defaults(values, schema)
        config = Config(values, root)
        errors = list(problems(config))
        if not errors:
            return config
    listed = "\n".join(f"  - {error}" for error in errors)
    raise UserError(f"the configuration has {len(errors)} problem(s):\n{listed}")


def load_file(path: Path, root: Path = ROOT) -> Config:
    """Read and check a configuration file."""
    values = load_yaml(path)
    if not isinstance(values, Mapping):
        raise UserError(f"{path}: not a configuration: the top level must be keys and values")
    return load(values, root)


def load_yaml(path: Path) -> Any:
    """A YAML file's content. Raises UserError when it is missing or not YAML."""
    try:
        with open(path, encoding="utf-8") as handle:
            return yaml.load(handle, Loader=_Loader)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {error}") from None


_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def fill_defaults(values: dict[str, Any], schema: Mapping[str, Any]) -> None:
    """Set missing keys to the schema's defaults, in place, in every nested block."""
    for key, sub in schema.get("properties", {}).items():
        if key not in values and "default" in sub:
            values[key] = deepcopy(sub["default"])
        if isinstance(values.get(key), dict):
            fill_defaults(values[key], sub)
            extra = sub.get("additionalProperties")
            if isinstance(extra, Mapping):
                for entry in values[key].values():
                    fill_defaults(entry, extra)


def nearest(word: str, known: Iterable[str]) -> str:
    """' Did you mean "x"?' for a likely misspelling, else an empty string."""
    close = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f' Did you mean "{close[0]}"?' if close else ""


def _is_integer(_: Any, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(_: Any, value: Any) -> bool:
    return _is_integer(_, value) or (isinstance(value, float) and isfinite(value))


# Stricter than JSON Schema, for which 1.0 is an integer: a seed is a part of a path.
_Validator = extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine_many(
        {"integer": _is_integer, "number": _is_number}
    ),
)


def _schema_problems(values: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    for error in _Validator(schema).iter_errors(values):
        yield from _describe(error)


def _describe(error: ValidationError) -> Iterator[str]:
    rule: Any = error.validator_value
    block: Any = error.schema
    given: Any = error.instance
    where = ".".join(str(part) for part in error.absolute_path) or "the top level"
    if error.validator == "additionalProperties":
        allowed = sorted(block.get("properties", {}))
        for key in sorted(set(given) - set(allowed), key=str):
            yield f'{where}: unknown key "{key}".{nearest(key, allowed)} Allowed: {allowed}.'
    elif error.validator == "required":
        missing = sorted(set(rule) - set(given))
        yield f"{where}: missing {missing}; add it (see config/README.md)."
    elif error.validator == "enum":
        hint = nearest(str(given), map(str, rule))
        yield f"{where}: {given!r} is not one of {rule}.{hint}"
    elif error.validator == "oneOf":
        options = [option.get("required") for option in rule]
        yield f"{where}: give exactly one of {options}."
    else:
        yield f"{where}: {error.message}.{_number_hint(given, rule)}"


def _number_hint(given: Any, rule: Any) -> str:
    """YAML 1.1 reads 1e-5 as text."""
    if not isinstance(given, str) or "number" not in rule:
        return ""
    try:
        return f" Write it as {float(given)!r} with a decimal point, such as 1.0e-5."
    except ValueError:
        return ""
