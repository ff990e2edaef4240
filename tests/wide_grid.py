"""The paper's grid with as many targets as one likes."""

from pathlib import Path

import yaml

from support import ROOT, config


def widened(number: int, folder: Path) -> Path:
    """A configuration file below `folder`: the study's ten targets, again under other names."""
    wide = config("config")
    study = wide["grid"]["targets"]
    names = {
        slug if copy == 0 else f"{slug}-{copy}": slug
        for copy in range(-(-number // len(study)))
        for slug in study
    }
    slugs = list(names)[:number]
    for kind, file in wide["resources"].items():
        entries = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
        found = {slug: dict(entries[names[slug]]) for slug in slugs}
        if kind == "targets":
            found = {s: e if s in study else e | {"subject": s} for s, e in found.items()}
        wide["resources"][kind] = str(folder / f"{kind}.yaml")
        text = yaml.safe_dump(found, sort_keys=False)
        (folder / f"{kind}.yaml").write_text(text, encoding="utf-8")
    wide["grid"]["targets"] = slugs
    path = folder / "wide.yaml"
    path.write_text(yaml.safe_dump(wide, sort_keys=False), encoding="utf-8")
    return path
