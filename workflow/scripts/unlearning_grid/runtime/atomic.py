"""Writing so that a reader never sees half a file, whatever kills the writer."""

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write through a temporary name in the same folder, flush to disk, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys and a final newline, atomically."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any | None:
    """The file's JSON, or None when it is missing or was cut short."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # no JSON, or cut within a character
        return None


def publish(source: Path, target: Path) -> None:
    """Put a file or folder at its final name; `source` stays (hard links where possible)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        if source.is_dir():
            shutil.copytree(source, temporary, copy_function=_link_or_copy)
            remove(target)
            os.rename(temporary, target)
        else:
            _link_or_copy(source, temporary)
            os.replace(temporary, target)
    finally:
        remove(temporary)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _link_or_copy(source: str | Path, target: str | Path) -> str:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target)
    return str(target)
