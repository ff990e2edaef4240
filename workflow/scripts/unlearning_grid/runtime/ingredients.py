"""What stands behind the digests of a spec, for people: kept in run.json, never compared by rules.

A spec holds one digest over all modules and one over all pins. When it no longer fits, these lists
say which module and which pin changed (`ops why`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unlearning_grid.spec.canonical import digest
from unlearning_grid.spec.code import module_digests
from unlearning_grid.spec.environment import env_digest, pins

_CHECKOUT = Path(__file__).resolve().parents[4]


def ingredients(spec: Mapping[str, Any], root: Path = _CHECKOUT) -> dict[str, Any]:
    """{"modules": {name: digest}, "pins": [name==version]} of a spec, as they are on disk now.

    Empty where they are not those of the spec: modules that changed since, pins of another file.
    """
    modules = module_digests(spec["modules"]) if spec.get("modules") else {}
    found: dict[str, Any] = {"modules": modules if digest(modules) == spec["code"] else {}}
    files = sorted((root / "envs").glob("*.yaml"))
    own = [pins(path) for path in files if env_digest(path.stem, root) == spec["env"]]
    return {**found, "pins": own[0] if own else []}
