"""Stage: take one target's rows out of the data set, one file per RWKU config."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unlearning_grid.config import ROOT, expand_path
from unlearning_grid.data.hub import read_hub
from unlearning_grid.data.rwku import (
    RWKU_CONFIGS,
    check_config,
    read_rows,
    select_rows,
    write_jsonl,
)
from unlearning_grid.runtime.job import Job

log = logging.getLogger(__name__)


def load_rows(job: Job) -> dict[str, Any]:
    """Write "rows", a folder of {config}.jsonl with the original columns, in source order.

    Settings: source, subject, configs. A "world" source reads the input "world".
    Returns the number of rows of each config.
    """
    settings = job.settings
    source = _source(job, settings["source"])
    folder = job.outputs["rows"]
    folder.mkdir()
    counts: dict[str, Any] = {}
    for name in settings["configs"]:
        rows = rows_of(source, name, settings["subject"])
        write_jsonl(folder / f"{name}.jsonl", rows)
        counts[name] = len(rows)
        log.info("%s: %d rows of %s", name, len(rows), settings["subject"])
    return counts


def rows_of(source: Mapping[str, Any], name: str, subject: str) -> list[dict]:
    """Rows of one subject in one RWKU config: data.rwku.read_rows, and the hub besides.

    `source` may be {"kind": "hub", "repo": "jinzhuoran/RWKU", "revision": commit}.
    """
    if source["kind"] != "hub":
        return read_rows(source, name, subject)
    check_config(name)
    rows = read_hub(source, name, RWKU_CONFIGS[name])
    return select_rows(rows, name, subject, f"{source['repo']} config {name}")


def _source(job: Job, source: Mapping[str, Any]) -> dict[str, Any]:
    if source["kind"] == "world":
        return {"kind": "path", "path": job.artefact("world", "rwku")}
    if source["kind"] == "path":
        return {"kind": "path", "path": expand_path(source["path"], Path(ROOT))}
    return dict(source)
