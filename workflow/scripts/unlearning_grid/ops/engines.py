"""Whether vLLM and transformers agree, on one policy of a finished grid: run where vLLM is."""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from unlearning_grid.config import load_file
from unlearning_grid.errors import UserError
from unlearning_grid.grid import parse_policy
from unlearning_grid.ops.columns import columns, ruled
from unlearning_grid.paths import RESULTS, policy_dir, stage_dir
from unlearning_grid.runtime.job import Job
from unlearning_grid.runtime.manifest import NAME, check_output
from unlearning_grid.spec.sources import model_facts

SHOWN = 3
TOLERANCE = 1e-3  # nats, for float32


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command `engines`."""
    parser = commands.add_parser(
        "engines",
        parents=[common],
        help="compare vLLM with transformers on a finished policy",
        description="Completes the greedy prompts of one evaluation with both engines and counts "
        "what differs. Exit status 1 when float32 differs, or a first token's log-probability by "
        f"more than {TOLERANCE}. Run it with an interpreter that has vLLM.",
    )
    parser.add_argument("policy", help="such as base/0.5b or grpo/0.5b/karl-marx/cold/r0-lex/s1")
    parser.add_argument("target", help="a target that it was evaluated on")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="precision of both"
    )
    parser.add_argument("--prompts", type=int, metavar="N", help="first N of each set only")
    parser.add_argument("--csv", type=Path, help="write every row there")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from unlearning_grid.generate.agreement import compare, with_dtype

    job = _job(arguments)
    table: Any = compare(with_dtype(job, arguments.dtype), _parts(arguments, job))
    if arguments.csv:
        table.to_csv(arguments.csv, index=False, lineterminator="\n")
    print("\n".join(describe(table, arguments.dtype)))
    if arguments.dtype != "float32":
        return 0
    return int(not table["same"].all() or bool((table["logprob_difference"] > TOLERANCE).any()))


def describe(table: Any, dtype: str) -> list[str]:
    """Lines about a comparison: counts by part and in all, and the first rows that differ."""
    head = [dtype, "completions", "different", "largest log-prob difference"]
    parts = [(part, some) for part, some in table.groupby("part", sort=False)]
    rows = [
        [name, str(len(some)), str(int((~some["same"]).sum())), _largest(some)]
        for name, some in [*parts, ("all", table)]
    ]
    lines = ruled(columns([head, *rows]))
    for row in table[~table["same"]].head(SHOWN).itertuples():
        lines += [
            f"{row.part}, {row.prompt_id}, from character {row.first_difference}:",
            f"  transformers {row.transformers[:160]!r}",
            f"  vllm         {row.vllm[:160]!r}",
        ]
    return lines


def _largest(rows: Any) -> str:
    return f"{rows['logprob_difference'].max():.1e}"


def _job(arguments: argparse.Namespace) -> Job:
    config = load_file(arguments.config)
    try:
        size = parse_policy(arguments.policy)["size"]
    except ValueError as error:
        raise UserError(f"{error}; results/plan/plan.json lists the policies") from None
    if size not in config["models"]:
        raise UserError(f"{arguments.policy}: {arguments.config} has no models.{size}")
    model = model_facts(config, size)
    inputs = {}
    if "build" in model:
        inputs["model"] = RESULTS / "world" / NAME
    if not arguments.policy.startswith("base/"):
        inputs["policy"] = policy_dir(arguments.policy) / NAME
    settings = {
        "model": model,
        "batch_size": config["generate"]["batch_size"],
        "vllm_memory_share": config["generate"]["vllm_memory_share"],
    }
    work = Path(tempfile.gettempdir())
    return Job(spec={"settings": settings, "cell": {}}, inputs=inputs, outputs={}, work=work)


def _parts(arguments: argparse.Namespace, job: Job) -> list[Any]:
    """The evaluation's greedy prompts, as its completions name them."""
    import json

    import pandas as pd

    from unlearning_grid.generate.backend import Decoding
    from unlearning_grid.generate.rows import Part
    from unlearning_grid.models.policy import Policy

    folder = stage_dir("completions", arguments.policy, arguments.target)
    table = pd.read_parquet(check_output(folder / NAME, "completions.parquet"))
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    sets, penalty = run["spec"]["settings"]["sets"], run["facts"]["repetition_penalty"]
    tokenizer = Policy(job).tokenizer
    parts = []
    groups: Any = table.groupby(["set", "decoding"], sort=False)
    for (name, decoding), rows in groups:
        kept = rows.head(arguments.prompts) if arguments.prompts else rows
        ids = tokenizer(kept["rendered"].tolist(), add_special_tokens=False)["input_ids"]
        way = Decoding(
            sets[name]["max_new_tokens"],
            repetition_penalty=penalty if decoding == "shipped" else 1.0,
        )
        asked = kept[["prompt_id"]].reset_index(drop=True).assign(ids=ids)
        parts.append(Part(f"{name}-{decoding}", asked, way))
    return parts
