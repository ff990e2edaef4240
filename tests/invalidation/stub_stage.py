"""Stands in for every stage function: writes small outputs, through the real stage_main.

Rules, specs, manifests, run.json and publishing are the real ones; only the work is left out.
"""

from pathlib import Path

from unlearning_grid.spec.canonical import digest


def make(job):
    """Write every output: a folder where its name has no suffix, else a file that names the spec.

    What is written depends on what the real stage would depend on, less the code: as after an edit
    that was harmless.
    """
    facts = {name: value for name, value in job.spec.items() if name != "code"}
    text = digest({"spec": facts, "from": [_read(p) for p in _manifests(job)]})
    for path in job.outputs.values():
        if path.suffix:
            path.write_text(text)
        else:
            path.mkdir()
            (path / "file").write_text(text)
    return {"stub": True}


def _manifests(job):
    for _, value in sorted(job.inputs.items()):
        yield from value if isinstance(value, list) else [value]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
