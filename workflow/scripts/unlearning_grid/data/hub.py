"""Rows of a data set on the Hugging Face hub, at one commit, read from the hub's own cache.

The data set's card says which files make up a config; they are read as they are. The `datasets`
library would convert them into a second cache, which it finds again without a network only by its
own rules (huggingface/datasets issues 4760, 6837, 7359).
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from unlearning_grid.errors import UserError
from unlearning_grid.spec.hub import HINT, LOCK

CARD = "README.md"


def read_hub(source: Mapping[str, Any], config_name: str, split: str) -> Iterator[dict]:
    """Rows of one config and split, in the order of its files.

    `source`: {"repo", "revision": commit}. A file holds a JSON array or one object a line. What
    lies in the cache is read without a request.
    Raises UserError: no commit, a file that cannot be had, a card or a file of another form.
    """
    repo, revision = source["repo"], source.get("revision")
    if revision is None:
        raise UserError(
            f"data.revision: null, and {LOCK} holds no commit of {repo}; `make prefetch` finds "
            "the newest once and keeps it there, or give a commit (or use a 'path' source)"
        )
    card = fetch(repo, revision, CARD)
    for name in data_files(card.read_text(encoding="utf-8"), config_name, split, repo):
        yield from _rows(fetch(repo, revision, name), f"{repo} {name}")


def data_files(card: str, config_name: str, split: str, repo: str) -> list[str]:
    """Files of a config's split, by the block `configs` at the head of a data set's card.

    Raises UserError when it names none, or patterns.
    """
    try:
        configs = yaml.safe_load(card.split("---\n", 2)[1])["configs"]
        (block, *_) = [entry for entry in configs if entry["config_name"] == config_name]
        (given,) = [entry["path"] for entry in block["data_files"] if entry["split"] == split]
    except (IndexError, KeyError, TypeError, ValueError, yaml.YAMLError):
        raise UserError(
            f"{repo}: its card names no files of config {config_name}, split {split}; export the "
            "rows as {config}.jsonl and use a 'path' source"
        ) from None
    files = [given] if isinstance(given, str) else list(given)
    patterns = [name for name in files if set(name) & set("*?[")]
    if patterns:
        raise UserError(f"{repo}: {patterns[0]} is a pattern; only files by name are read")
    return files


def fetch(repo: str, revision: str, name: str) -> Path:
    """Where a file of a data set lies, downloaded unless it is in the cache.

    Raises UserError when it cannot be had.
    """
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repo, name, repo_type="dataset", revision=revision))
    except Exception as error:  # the hub client has no common base class for its errors
        reason = " ".join(str(error).split())
        raise UserError(
            f"data.repo: {name} of {repo} at {revision} cannot be had: {reason} {HINT}"
        ) from error


def _rows(path: Path, where: str) -> Iterator[dict]:
    text = path.read_text(encoding="utf-8")
    try:
        if text.lstrip()[:1] == "[":
            rows = json.loads(text)
        else:
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: neither a JSON array nor JSON Lines ({error})") from error
    if not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{where}: a row must be a JSON object")
    yield from rows
