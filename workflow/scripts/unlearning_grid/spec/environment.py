"""Identity of an environment: its pins, whatever the comments around them."""

from functools import lru_cache
from pathlib import Path

from unlearning_grid.config import load_yaml
from unlearning_grid.spec.canonical import digest

# Packages that install, read configurations, watch processes, send requests and draw curves on the
# side: another version of them changes no result.
TRACKING = {"pip", "pyyaml", "jsonschema", "psutil", "openai", "tenacity", "tensorboard"}


def pins(path: Path) -> list[str]:
    """The pinned packages of a conda environment file, conda's and pip's, sorted."""
    found: list[str] = []
    for entry in load_yaml(path)["dependencies"]:
        found += entry["pip"] if isinstance(entry, dict) else [entry]
    return sorted(found)


def env_digest(name: str, root: Path) -> str:
    """Digest of the pins in envs/<name>.yaml, TRACKING left out."""
    path = root / "envs" / f"{name}.yaml"
    return _digest(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _digest(path: Path, _mtime_ns: int) -> str:
    return digest([pin for pin in pins(path) if pin.partition("=")[0].lower() not in TRACKING])
