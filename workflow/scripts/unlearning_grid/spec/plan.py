"""The plan of a grid: every result it should hold, and the spec digest that makes it current."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from unlearning_grid.grid import evaluations, is_meant, parse_policy, sizes, warmups
from unlearning_grid.paths import (
    REFUSAL_DETECTORS,
    RESULTS,
    base_rows_dir,
    data_dir,
    opinion_stage,
    policy_dir,
    prompts_dir,
    sampled_stage,
    stage_dir,
)
from unlearning_grid.rewards import registry as rewards

if TYPE_CHECKING:
    from unlearning_grid.spec.stages import Specs

EVALUATION_STAGES = {
    "completions": "generate_completions",
    "likelihoods": "score_likelihoods",
    "audit": "audit_completions",
    "rwku": "evaluate_rwku",
}


def planned(specs: "Specs") -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(folder, rule, cell) of every result above the tables, upstream first."""
    yield from _data(specs)
    cells = specs.config.cells
    for policy in warmups(cells):
        facts = parse_policy(policy)
        yield _at(policy_dir(policy)), "train_warmup", _strings(facts, "size", "target", "seed")
    for cell in cells:
        facts = _strings(vars(cell), "size", "target", "init", "reward", "seed")
        yield _at(policy_dir(cell.policy)), "train_grpo", facts
    if specs.config["terminal_audit"]["enabled"]:
        for cell in cells:
            folder = _at(stage_dir("terminal", cell.policy, cell.target))
            yield folder, "audit_rollouts", {"policy": cell.policy, "target": cell.target}
    if specs.shares_base_engine:
        for size in sizes(cells):
            yield _at(base_rows_dir(size)), "generate_base_rows", {"size": size}
    for item in evaluations(cells):
        for stage, rule in EVALUATION_STAGES.items():
            yield _at(stage_dir(stage, item.policy, item.target)), rule, dict(vars(item))
        for opinion in opinions(specs.config):
            folder = _at(stage_dir(opinion_stage(**opinion), item.policy, item.target))
            yield folder, "audit_again", {**opinion, **vars(item)}
        if specs.config["sampled_audit"]["enabled"]:
            folder = _at(stage_dir("samples", item.policy, item.target))
            yield folder, "sample_completions", dict(vars(item))
    for audit in sampled_audits(specs.config):
        folder = _at(stage_dir(sampled_stage(audit["judge"]), audit["policy"], audit["target"]))
        yield folder, "audit_samples", audit


def sampled_audits(config: Any) -> list[dict[str, str]]:
    """Who labels which evaluation's samples: {"judge", "policy", "target"}, each once.

    One judge labels all; every entry of `opinions` labels those that it names.
    """
    block = config["sampled_audit"]
    if not block["enabled"]:
        return []
    first = block["judge"] or config["audit"]["judge"]
    rules: list[Any] = [{"judge": first, "where": {}}, *block["opinions"]]
    found = [
        {"judge": rule["judge"], **vars(item)}
        for rule in rules
        for item in evaluations(config.cells)
        if is_meant(item, rule["where"])
    ]
    return [dict(one) for one in dict.fromkeys(tuple(audit.items()) for audit in found)]


def opinions(config: Any) -> list[dict[str, str]]:
    """Further opinions on each evaluation's held-out completions: {"judge", "replicate"}."""
    block = config["agreement"]
    again = [str(number) for number in range(1, block["replicates"] + 1)]
    others = [{"judge": name, "replicate": "0"} for name in block["judges"]]
    return others + [{"judge": config["audit"]["judge"], "replicate": n} for n in again]


def _data(specs: "Specs") -> Iterator[tuple[str, str, dict[str, Any]]]:
    config = specs.config
    targets: list[str] = list(config["grid"]["targets"])
    train = config["detector"].get("train")
    if config["data"]["source"] == "world":
        yield _at(RESULTS / "world"), "build_demo_world", {}
    more: list[str] = train["targets"] if train else []
    for target in dict.fromkeys(targets + more):
        for part in ("questions", "probes"):  # of what the detector learns from, too
            folder = _at(data_dir(target, part))
            yield folder, "load_rows", {"target": target, "part": part}
        yield _at(data_dir(target, "knowledge")), "write_knowledge", {"target": target}
    for target in targets:
        yield _at(data_dir(target, "split")), "split_target", {"target": target}
        facts = {"target": target, "part": "benchmark"}
        yield _at(data_dir(target, "benchmark")), "load_rows", facts
        for size in config["grid"]["sizes"]:
            facts = {"size": size, "target": target}
            yield _at(prompts_dir(size, target)), "render_rwku", facts
    if train:
        folder = _at(RESULTS / "detector" / train["name"])
        yield folder, "train_refusal_detector", {"detector": train["name"]}
    yield _at(REFUSAL_DETECTORS), "evaluate_refusal_detectors", {}
    if any("term_weights" in rewards.load(r).needs for r in config["grid"]["rewards"]):
        for target in targets:
            yield _at(data_dir(target, "term_weights")), "weigh_terms", {"target": target}
    if "warm" in config["grid"]["inits"] and config["warmup"]["objective"] == "broad":
        for target in targets:
            yield _at(data_dir(target, "broad")), "write_broad_answers", {"target": target}


def build_plan(specs: "Specs") -> dict[str, Any]:
    """What the grid should hold.

    {"name", "cells": [facts], "evaluations": [facts], "opinions": [{"judge", "replicate"}],
    "sampled_audits": [{"judge", "policy", "target"}], "samples": of each prompt there,
    "expected": {folder: spec digest}}.
    """
    cells = specs.config.cells
    return {
        "name": specs.config["name"],
        "cells": [vars(cell) | {"policy": cell.policy, "warmup": cell.warmup} for cell in cells],
        "evaluations": [dict(vars(item)) for item in evaluations(cells)],
        "opinions": opinions(specs.config),
        "sampled_audits": sampled_audits(specs.config),
        "samples": specs.config["sampled_audit"]["samples"],
        "expected": {folder: specs.digest(rule, **cell) for folder, rule, cell in planned(specs)},
    }


def _strings(facts: Any, *names: str) -> dict[str, str]:
    """The facts as Snakemake's wildcards have them."""
    return {name: str(facts[name]) for name in names}


def _at(path: Any) -> str:
    return path.as_posix()
