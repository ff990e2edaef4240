"""What the file that words RWKU's sets must hold."""

from collections.abc import Iterator, Mapping
from typing import Any

from unlearning_grid.config import Config, load_yaml
from unlearning_grid.errors import UserError

# Key -> what it is: a text that holds these fields, or a list of [question, answer].
KEYS: dict[str, tuple[str, ...] | None] = {
    "cloze": (),
    "question": (),
    "general.heading": ("{task}",),
    "general.request": (),
    "reason.request": (),
    "truthfulness.examples": None,
    "factuality.examples": None,
    "factuality.request": (),
    "fluency.heading": ("{instruction}",),
}


def problems(config: Config) -> Iterator[str]:
    """Problems of rwku.prompt_file, each with the key inside the file."""
    name = config["rwku"]["prompt_file"]
    where = f'rwku.prompt_file: "{name}"'
    try:
        found = load_yaml(config.file(name))
    except UserError as error:
        yield f"rwku.prompt_file: {error}; name a file like config/prompts/reworded-v1/rwku.yaml."
        return
    for key, fields in KEYS.items():
        value = _at(found, key)
        if fields is None:
            if not _is_pairs(value):
                yield f"{where}: {key} must be a list of [question, answer]."
        elif not isinstance(value, str) or not value.strip():
            yield f"{where}: {key} must be a text."
        else:
            for field in fields:
                if field not in value:
                    yield f"{where}: {key} must hold {field}."


def _at(found: Any, key: str) -> Any:
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _is_pairs(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_pair, value))


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(t, str) for t in value)
