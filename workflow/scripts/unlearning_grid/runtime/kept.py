"""Parts of a result that outlive the job: a killed job goes on, an edit redoes what it touches."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from unlearning_grid.runtime.job import Job
from unlearning_grid.spec.canonical import digest

log = logging.getLogger(__name__)


def kept_table(job: Job, name: str, identity: Mapping[str, Any], make: Callable[[], Any]) -> Any:
    """The table `name`, made by `make` unless it was already, from the same `identity`.

    `identity` holds what the table depends on beside the stage's code, environment, model and
    policy, which count always. The older table of that name is deleted.
    """
    import pandas as pd

    made_from = [job.content_digest(i) for i in ("policy", "model") if i in job.inputs]
    whole = {
        **identity,
        "model": dict(job.settings["model"]),
        "policy": made_from,
        "code": job.spec["code"],
        "env": job.spec["env"],
    }
    done = job.kept / f"{name}-{digest(whole)[:16]}.parquet"
    if done.is_file():
        log.info("%s: kept from an earlier run", name)
        return pd.read_parquet(done)
    table = make()
    job.checkpoint_guard()
    for old in job.kept.glob(f"{name}-????????????????.parquet"):
        old.unlink()
    partial = done.with_name(f".{done.name}")
    table.to_parquet(partial, index=False)
    partial.rename(done)
    return table
