"""Stage: what a rules judge knows about one target."""

import shutil
from typing import Any

from unlearning_grid.data.gold import knowledge_of
from unlearning_grid.data.knowledge import dump_knowledge
from unlearning_grid.data.rwku import FORGET_LEVELS, read_jsonl
from unlearning_grid.runtime.job import Job


def write(job: Job) -> dict[str, Any]:
    """Write "knowledge": the world's own in the demo, names and gold answers on real data."""
    if job.settings["source"] == "world":
        source = job.artefact("world", "knowledge") / f"{job.cell['target']}.json"
        shutil.copyfile(source, job.outputs["knowledge"])
        return {"closed": True}
    rows = job.artefact("probes", "rows")
    probes = [row for name in FORGET_LEVELS for row in read_jsonl(rows / f"{name}.jsonl")]
    knowledge = knowledge_of(job.settings["subject"], job.settings["aliases"], probes)
    dump_knowledge(knowledge, job.outputs["knowledge"])
    return {"closed": False, "facts": len(knowledge.facts)}
