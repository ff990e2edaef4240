"""Identity of what comes from outside: models and rows, by revision or by content.

Where a folder lies is no part of it: a path stands in a spec as the configuration writes it
(relative, or with an environment variable), with a digest of what is there.
"""

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from unlearning_grid.config import Config
from unlearning_grid.spec.canonical import digest, digest_file, digest_text
from unlearning_grid.spec.hub import locked

_WHOLE = 16 << 20
_SAMPLE = 1 << 20


def model_facts(config: Config, size: str) -> dict[str, Any]:
    """Identity of a size's base model."""
    model = dict(config["models"][size])
    if "path" in model:
        model["digest"] = folder_digest(config.file(model["path"]))
    return model


def rows_facts(config: Config, configs: Iterable[str]) -> dict[str, Any]:
    """Identity of the RWKU files that a stage reads."""
    data = config["data"]
    if data["source"] == "world":
        return {"kind": "world"}
    if data["source"] == "hub":
        revision = data["revision"] or locked(config.root, "dataset", data["repo"])
        return {"kind": "hub", "repo": data["repo"], "revision": revision}
    folder = config.file(data["path"])
    files = {name: _rows_digest(folder / f"{name}.jsonl") for name in configs}
    return {"kind": "path", "path": data["path"], "files": files}


def folder_digest(folder: Path) -> str:
    """Digest of a model folder: small files whole, weights by size and their first and last MiB.

    A folder of many gigabytes is looked at on every start, so its weights are sampled; two
    checkpoints of one training differ everywhere, in the samples too.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return digest({p.relative_to(folder).as_posix(): _file_digest(p) for p in files})


def _rows_digest(path: Path) -> str:
    stat = path.stat()
    return _cached_whole(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _cached_whole(path: Path, _size: int, _mtime_ns: int) -> str:
    return digest_file(path)


def _file_digest(path: Path) -> str:
    stat = path.stat()
    return _cached(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _cached(path: Path, size: int, _mtime_ns: int) -> str:
    if size <= _WHOLE:
        return digest_file(path)
    with open(path, "rb") as handle:
        head = handle.read(_SAMPLE)
        handle.seek(-_SAMPLE, 2)
        tail = handle.read()
    return digest_text(f"{size} {head.hex()} {tail.hex()}")
