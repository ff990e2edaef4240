"""Stage: greedy completions of one policy for all prompt sets of one target.

Sets are kept one by one in work/kept, under the digest of all that one set depends on, so that a
killed job goes on with the next set, and a set that changes or is added generates itself alone.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unlearning_grid.data.rwku import read_jsonl
from unlearning_grid.models.chat import render, render_probe
from unlearning_grid.models.load import load_model, load_tokenizer, locate, with_adapter
from unlearning_grid.models.sampling import generate as complete
from unlearning_grid.runtime.job import Job
from unlearning_grid.spec.canonical import digest

log = logging.getLogger(__name__)

SETS = {
    "heldout": (),
    "rwku-forget": ("forget_level1", "forget_level2", "forget_level3"),
    "rwku-neighbor": ("neighbor_level1", "neighbor_level2"),
}

COLUMNS = (
    "set",
    "prompt_id",
    "level",
    "type",
    "prompt",
    "rendered",
    "answer",
    "completion",
    "tokens",
    "finish_reason",
)


def generate(job: Job) -> dict[str, Any]:
    """Write "completions": one row per prompt, sets in a fixed order, prompts in source order.

    Inputs: split, probes, policy (trained policies), model (built ones).
    """
    import pandas as pd

    settings = job.settings
    where = locate(job, settings["model"])
    tokenizer = load_tokenizer(where)
    model = load_model(where)
    if "policy" in job.inputs:
        model = with_adapter(model, job.artefact("policy", "adapter"))
    frames = []
    for name in SETS:
        rows = prompts_of(job, name, tokenizer)
        log.info("%s: %d prompts", name, len(rows))
        frames.append(_complete(job, model, tokenizer, name, rows))
    table: Any = pd.concat(frames, ignore_index=True)[list(COLUMNS)]
    table.to_parquet(job.outputs["completions"], index=False)
    return {"rows": len(table), "tokens": int(table["tokens"].sum())}


def prompts_of(job: Job, name: str, tokenizer: Any) -> list[dict[str, Any]]:
    """The prompts of a set, rendered, with gold answers where there are any."""
    limit = job.settings["sets"][name]["max_prompts"]
    if name == "heldout":
        rows = read_jsonl(job.artefact("split", "heldout.jsonl"))[:limit]
        return [
            {
                "set": name,
                "prompt_id": row["prompt_id"],
                "level": None,
                "type": None,
                "prompt": row["prompt"],
                "rendered": render(tokenizer, row["prompt"]),
                "answer": None,
            }
            for row in rows
        ]
    folder = job.artefact("probes", "rows")
    return [
        row
        for config in SETS[name]
        for row in _probes(folder, config, job.settings["instructions"], tokenizer, name)[:limit]
    ]


def _probes(
    folder: Path, config: str, instructions: Mapping[str, str], tokenizer: Any, name: str
) -> list[dict[str, Any]]:
    """RWKU probes as the benchmark asks them: level 1 is a cloze, the rest are questions."""
    level = int(config[-1])
    instruction = instructions["cloze" if level == 1 else "question"]
    return [
        {
            "set": name,
            "prompt_id": f"{config}-{number:03d}",
            "level": level,
            "type": row["type"],
            "prompt": row["query"],
            "rendered": render_probe(tokenizer, row["query"], instruction, row["type"]),
            "answer": str(row["answer"]),
        }
        for number, row in enumerate(read_jsonl(folder / f"{config}.jsonl"))
    ]


def _complete(
    job: Job, model: Any, tokenizer: Any, name: str, rows: Sequence[dict[str, Any]]
) -> Any:
    import pandas as pd

    settings = job.settings
    identity = {
        "settings": settings["sets"][name],
        "rendered": [row["rendered"] for row in rows],
        "model": dict(settings["model"]),
        "policy": [job.content_digest(name) for name in ("policy", "model") if name in job.inputs],
        "code": job.spec["code"],
        "env": job.spec["env"],
    }
    done = job.kept / f"{name}-{digest(identity)[:16]}.parquet"
    if done.is_file():
        log.info("%s: kept from an earlier run", name)
        return pd.read_parquet(done)
    groups = complete(
        model,
        tokenizer,
        [row["rendered"] for row in rows],
        max_new_tokens=settings["sets"][name]["max_new_tokens"],
        batch_size=settings["batch_size"],
    )
    table = pd.DataFrame(list(rows))
    table["completion"] = [group[0].text for group in groups]
    table["tokens"] = [group[0].tokens for group in groups]
    table["finish_reason"] = [group[0].finish_reason for group in groups]
    table["level"] = table["level"].astype("Int64")
    job.checkpoint_guard()
    for old in job.kept.glob(f"{name}-*.parquet"):
        old.unlink()
    partial = done.with_name(f".{done.name}")
    table.to_parquet(partial, index=False)
    partial.rename(done)
    return table
