"""manifest.json: what a stage made, by content. The edge that later stages depend on.

A manifest names the sha256 of every output and the content digest of every manifest it was made
from. It holds no spec, no time and no host: the same result has the same manifest, so that
accepting a harmless edit leaves everything below untouched. The spec stands in run.json.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.runtime.atomic import read_json
from unlearning_grid.spec.canonical import digest, digest_tree

NAME = "manifest.json"
RUN_NAME = "run.json"


def describe(stage: str, outputs: Mapping[str, Path], inputs: Mapping[str, str]) -> dict[str, Any]:
    """The manifest of finished outputs.

    Args:
        outputs: final path relative to the manifest's folder -> where the file lies now.
        inputs: path of a manifest -> its content digest.
    """
    return {
        "stage": stage,
        "outputs": {name: digest_tree(path) for name, path in sorted(outputs.items())},
        "inputs": dict(sorted(inputs.items())),
    }


def content_digest(manifest: Mapping[str, Any]) -> str:
    """Digest of what a stage made: equal outputs, equal digest, whatever they were made from."""
    return digest({"stage": manifest["stage"], "outputs": manifest["outputs"]})


def read(path: Path) -> dict[str, Any]:
    """A manifest that must be there.

    Raises UserError when it is missing or unreadable.
    """
    manifest = read_json(path)
    if not isinstance(manifest, dict) or "outputs" not in manifest:
        raise UserError(f"{path}: missing or not a manifest; rerun the stage that makes it")
    return manifest


def check_outputs(path: Path, flat: bool = False) -> dict[str, Any]:
    """Read a manifest and compare every output with its digest.

    Args:
        flat: all outputs lie beside the manifest, as in a work folder, wherever they end up.
    Raises UserError that names the first file that is missing or differs.
    """
    manifest = read(path)
    for name, expected in manifest["outputs"].items():
        _check(path.parent / (Path(name).name if flat else name), expected, path)
    return manifest


def check_output(path: Path, name: str) -> Path:
    """Path of one output of a manifest, compared with its digest.

    Raises UserError when the manifest does not list it, when it is missing or when it differs.
    """
    outputs = read(path)["outputs"]
    if name not in outputs:
        raise UserError(f"{path}: lists no {name}, only {sorted(outputs)}; rerun its stage")
    _check(path.parent / name, outputs[name], path)
    return path.parent / name


def _check(artefact: Path, expected: Any, path: Path) -> None:
    if not artefact.exists():
        raise UserError(f"{artefact}: listed in {path} but missing; delete {path} and rerun")
    if digest_tree(artefact) != expected:
        raise UserError(f"{artefact}: differs from {path}; delete {path} and rerun")
