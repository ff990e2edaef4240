"""Canonical JSON and digests: equal content has equal text, whatever the order of keys."""

import hashlib
import json
from pathlib import Path
from typing import Any

_BLOCK = 1 << 20
_SNAKEMAKE_MARK = ".snakemake_timestamp"  # Snakemake puts one into every directory output


def canonical(value: Any) -> str:
    """JSON text with sorted keys and no spaces; NaN and non-JSON types raise."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest(value: Any) -> str:
    """sha256 (hex) of the canonical JSON of `value`."""
    return digest_text(canonical(value))


def digest_text(text: str) -> str:
    """sha256 (hex) of UTF-8 text."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_file(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    sha = hashlib.sha256()
    with open(path, "rb") as handle:
        while block := handle.read(_BLOCK):
            sha.update(block)
    return sha.hexdigest()


def digest_tree(path: Path) -> str | dict[str, str]:
    """Digest of a file, or {relative path: digest} of every file below a folder."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and p.name != _SNAKEMAKE_MARK)
        return {p.relative_to(path).as_posix(): digest_file(p) for p in files}
    return digest_file(path)
