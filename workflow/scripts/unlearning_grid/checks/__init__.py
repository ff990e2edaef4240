"""What must fit together in a configuration, beyond the schema. Each problem is one line."""

import json
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any

from unlearning_grid.checks import judges, sampled, wording
from unlearning_grid.checks.words import one_of, variables
from unlearning_grid.config import Config
from unlearning_grid.errors import UserError
from unlearning_grid.grid import expand, first_epoch_rollouts, matches, split_sizes
from unlearning_grid.rewards.registry import REWARDS


def problems(config: Config) -> Iterator[str]:
    """Every problem of a configuration that satisfies the schema."""
    yield from _grid(config)
    yield from _targets(config)
    yield from _split(config)
    yield from _models(config)
    yield from _data(config)
    yield from wording.problems(config)
    yield from _audit(config)
    yield from _generate(config)
    yield from sampled.problems(config)
    yield from judges.problems(config)
    yield from _detector(config)
    yield from _term_weights(config)
    yield from _broad_answers(config)
    yield from _warmup(config)
    yield from _grpo(config)


def _grid(config: Config) -> Iterator[str]:
    grid = config["grid"]
    for size in grid["sizes"]:
        yield from one_of("grid.sizes", size, config["models"], "Add it to `models`.")
    for reward in grid["rewards"]:
        yield from one_of("grid.rewards", reward, REWARDS, "Register it in rewards/registry.py.")
    for reward in config["rewards"]:
        yield from one_of("rewards", reward, REWARDS, "Register it in rewards/registry.py.")
    everything = expand({**grid, "exclude": []})
    for number, rule in enumerate(grid["exclude"]):
        if not any(matches(cell, rule) for cell in everything):
            yield f"grid.exclude.{number}: {rule} matches no cell; correct or remove it."
    if not config.cells:
        yield "grid.exclude: nothing is left of the grid; remove an entry."


def _targets(config: Config) -> Iterator[str]:
    for key in ("targets", "terms"):
        name = config["resources"][key]
        try:
            known = config.targets if key == "targets" else config.terms
        except UserError as error:
            yield f"resources.{key}: {error}; name a file relative to the checkout."
            continue
        if not isinstance(known, dict):
            yield f"resources.{key}: {name}: not a mapping of target slugs."
            continue
        for target in config["grid"]["targets"]:
            yield from one_of(f"grid.targets (in {name})", target, known, f"Add it to {name}.")
            yield from _entry(f"resources.{key}: {name}: {target}", known.get(target), FIELDS[key])


FIELDS = {"targets": ("subject", "aliases"), "terms": ("hard", "soft")}


def _entry(where: str, entry: Any, fields: tuple[str, ...]) -> Iterator[str]:
    """What a target's entry in a resource file must hold."""
    if entry is None:
        return
    missing = [f for f in fields if not isinstance(entry, dict) or not entry.get(f)]
    if missing:
        yield f"{where}: missing or empty {missing}; it needs {list(fields)}."


def _models(config: Config) -> Iterator[str]:
    for size, model in config["models"].items():
        where = f"models.{size}"
        given = sorted({"repo", "path", "build"} & set(model))
        if len(given) != 1:
            yield f"{where}: give exactly one of repo, path, build; found {given}."
        elif "repo" in model and "revision" not in model:
            yield f"{where}: missing `revision`; pin the commit of {model['repo']}."
        elif "path" in model:
            yield from _model_folder(where, config, model["path"])
        elif "build" in model and config["data"]["source"] != "world":
            yield f"{where}.build: {model['build']!r} needs `data.source: world`."


def _model_folder(where: str, config: Config, name: str) -> Iterator[str]:
    yield from variables(f"{where}.path", name)
    folder = config.file(name)
    if not (folder / "config.json").is_file():
        yield f'{where}.path: no config.json in "{name}"; name a folder that save_pretrained made.'
    elif not list(folder.glob("*.safetensors")):
        yield f'{where}.path: no *.safetensors in "{name}"; other weight formats are not read.'


def _data(config: Config) -> Iterator[str]:
    data = config["data"]
    if data["source"] == "world":
        if not config.file(config["world"]["facts"]).is_file():
            yield f'world.facts: no file "{config["world"]["facts"]}".'
        return
    if data["source"] == "hub":
        return
    if data["path"] is None:
        yield "data.path: missing; name the folder of {config}.jsonl files."
        return
    unset = list(variables("data.path", data["path"]))
    yield from unset
    folder = config.file(data["path"])
    if not folder.is_dir():
        if not unset:
            yield f'data.path: no folder "{data["path"]}"; name one with {{config}}.jsonl files.'
        return
    for name in config_names(config):
        if not (folder / f"{name}.jsonl").is_file():
            yield f"data.path: no file {name}.jsonl in {data['path']}."
    yield from _enough_rows(config, folder / f"{config['split']['source_config']}.jsonl")


def config_names(config: Config) -> list[str]:
    """RWKU configs that the grid reads."""
    return [config["split"]["source_config"], *PROBES, *BENCHMARK]


PROBES = (
    "forget_level1",
    "forget_level2",
    "forget_level3",
    "neighbor_level1",
    "neighbor_level2",
)
BENCHMARK = (
    "mia_forget",
    "mia_retain",
    "utility_general",
    "utility_reason",
    "utility_truthfulness",
    "utility_factuality",
    "utility_fluency",
)


def _enough_rows(config: Config, path: Path) -> Iterator[str]:
    """Every part of a target's split must get a row (known before a job only for a folder)."""
    if not path.is_file():
        return
    try:
        with open(path, encoding="utf-8") as lines:
            found = [json.loads(line)["subject"] for line in lines if line.strip()]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        yield f"data.path: {path.name}: each line must be a JSON object with a subject ({error!r})."
        return
    for target in config["grid"]["targets"]:
        subject = config.targets.get(target, {}).get("subject")
        sizes = split_sizes(found.count(subject), config["split"])
        if subject and min(sizes.values()) < 1:
            yield (
                f"grid.targets: {target} ({subject}) has {found.count(subject)} rows in "
                f"{path.name}, which split into {sizes}; every part needs a row. Drop the target."
            )


def _split(config: Config) -> Iterator[str]:
    split = config["split"]
    train, test = split["sft_train_fraction"], split["sft_test_fraction"]
    if train + test >= 1:
        yield (
            f"split.sft_train_fraction + split.sft_test_fraction = {train + test} leaves nothing "
            "for GRPO; their sum must be below 1."
        )
    elif split["max_rows"] and min(split_sizes(split["max_rows"], split).values()) < 1:
        sizes = split_sizes(split["max_rows"], split)
        yield f"split.max_rows: {split['max_rows']} rows split into {sizes}; every part needs one."


def _detector(config: Config) -> Iterator[str]:
    train = config["detector"].get("train")
    if not train:
        return
    for target in train["targets"]:
        yield from one_of("detector.train.targets", target, config.targets, "")
    size = train.get("size")
    if size is None:
        yield "detector.train.size: missing; name the size whose tokenizer it uses."
    else:
        yield from one_of("detector.train.size", size, config["models"], "")


def _term_weights(config: Config) -> Iterator[str]:
    block = config["term_weights"]
    if "pagerank-lex" not in config["grid"]["rewards"]:
        return
    if block["size"] is not None:
        yield from one_of("term_weights.size", block["size"], config["models"], "")
    elif block["repo"] is None or block["revision"] is None:
        yield "term_weights: give `repo` with its `revision`, or `size`, a key of `models`."


def _broad_answers(config: Config) -> Iterator[str]:
    if "warm" not in config["grid"]["inits"] or config["warmup"]["objective"] != "broad":
        return
    block = config["broad_answers"]
    provider = block["provider"]
    if provider == "api" and config["judges"].get(block["judge"], {}).get("provider") == "rules":
        yield f"broad_answers.judge: {block['judge']} works by rules; a teacher is a model."
    if provider == "policy":
        yield from one_of("broad_answers.size", block["size"], config["models"], "")
    if provider == "rules" and config["data"]["source"] != "world":
        yield "broad_answers.provider: rules knows the embedded world only; use policy or answers."
    if provider in ("api", "policy") and not config.file(block["prompt_file"]).is_file():
        yield f'broad_answers.prompt_file: no file "{block["prompt_file"]}".'
    if provider == "answers":
        yield from _answers_file(config, block["file"])


def _answers_file(config: Config, name: str | None) -> Iterator[str]:
    where = f'broad_answers.file: "{name}"'
    if not name or not config.file(name).is_file():
        yield f"{where}: no such file; name JSON Lines with prompt and answer."
        return
    for number, line in enumerate(config.text(name).splitlines(), start=1):
        try:
            row = json.loads(line) if line.strip() else {"prompt": "", "answer": ""}
        except json.JSONDecodeError:
            row = None
        if not isinstance(row, dict) or not {"prompt", "answer"} <= set(row):
            yield f"{where}: line {number} is no JSON object with prompt and answer."
            return


def _audit(config: Config) -> Iterator[str]:
    twice = config["generate"]["shipped_penalty"]
    if config["audit"]["decoding"] == "shipped" and "heldout" not in twice:
        yield "audit.decoding: shipped needs heldout in generate.shipped_penalty; add it."


def _generate(config: Config) -> Iterator[str]:
    block = config["generate"]
    if block["backend"] != "vllm" or block["python"] is None:
        return
    unset = list(variables("generate.python", block["python"]))
    yield from unset
    if not unset and not config.file(block["python"]).is_file():
        yield (
            f'generate.python: no file "{block["python"]}"; make it with `make vllm`, or leave it '
            "out and run with --sdm conda."
        )


def _warmup(config: Config) -> Iterator[str]:
    block = config["warmup"]
    sizes = split_sizes(config["split"]["max_rows"] or 10**6, config["split"])
    steps = block["epochs"] * ceil(sizes["sft_train"] / block["batch_size"])
    if "warm" in config["grid"]["inits"] and block["monitor"]["enabled"]:
        first = block["monitor"]["first_step"]
        if first > steps:
            yield (
                f"warmup.monitor.first_step: {first} is past the last step ({steps} = epochs x "
                f"batches); lower it, raise warmup.epochs or set warmup.monitor.enabled to false."
            )


def _grpo(config: Config) -> Iterator[str]:
    grpo = config["grpo"]
    batch, group, reuse = grpo["batch_size"], grpo["num_generations"], grpo["num_iterations"]
    if batch % group:
        yield f"grpo.batch_size: {batch} completions are not a multiple of num_generations {group}."
        return
    micro = grpo["micro_batch_size"]
    if micro and batch % micro:
        yield f"grpo.micro_batch_size: {micro} does not divide batch_size {batch}."
    for key in ("max_steps", "save_steps"):
        if grpo[key] and grpo[key] % reuse:
            yield (
                f"grpo.{key}: {grpo[key]} is not a multiple of num_iterations {reuse}; a rollout "
                f"is used for {reuse} steps, and stops and checkpoints fall between rollouts."
            )
    if grpo["use_vllm"]:
        yield from _engine(grpo)
    split = config["split"]
    prompts = split_sizes(split["max_rows"] or 10**6, split)["grpo_train"]
    rollouts = first_epoch_rollouts(prompts, grpo)
    if rollouts < 1:
        yield (
            f"grpo.batch_size: {batch // group} prompts per rollout, but a target has {prompts}; "
            f"lower batch_size or raise split.max_rows."
        )
        return
    rule = grpo["no_learning"]
    judged = rollouts * reuse + (rule["timing"] == "paper")
    if rule["enabled"] and split["max_rows"] and grpo["max_steps"] < judged:
        yield (
            f"grpo.max_steps: {grpo['max_steps']} steps end before the no-learning rule judges the "
            f"first epoch ({rollouts} rollouts x {reuse} steps, timing {rule['timing']}: at step "
            f"{judged}); raise it, or set grpo.no_learning.enabled to false."
        )


def _engine(grpo: dict[str, Any]) -> Iterator[str]:
    """What the check of the engine's log-probabilities needs (docs/training.md)."""
    if grpo["top_p"] != 1:
        yield (
            f"grpo.top_p: {grpo['top_p']} with grpo.use_vllm; vLLM gives log-probabilities within "
            "the nucleus, which cannot be compared with the trainer's. Set it to 1."
        )
    if grpo["num_iterations"] < 2:
        yield (
            f"grpo.num_iterations: {grpo['num_iterations']} with grpo.use_vllm; the trainer's own "
            "log-probabilities, to compare with, are computed from 2 on. Raise it."
        )
