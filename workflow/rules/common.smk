"""The checked configuration, the specs, and the few input functions that rules share.

Everything with logic is in the library; here it is only tied to wildcards.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir) / "workflow" / "scripts"))

from snakemake.exceptions import WorkflowError
from unlearning_grid import config as grid_config
from unlearning_grid import grid, paths
from unlearning_grid.errors import UserError
from unlearning_grid.ops.state import state_digest
from unlearning_grid.spec.plan import opinions, sampled_audits
from unlearning_grid.spec.stages import Specs

try:
    CONFIG = grid_config.load(config, Path(workflow.basedir))
    SPECS = Specs(CONFIG)
    CELLS = CONFIG.cells
    EVALUATIONS = grid.evaluations(CELLS)
except UserError as problem:
    raise WorkflowError(str(problem)) from None

logger.info(f"grid: {CONFIG['name']} ({len(CELLS)} cells)")


wildcard_constraints:
    target="|".join(sorted(CONFIG.targets)),
    size="|".join(s.replace(".", r"\.") for s in CONFIG["models"]),
    init="cold|warm",
    reward="|".join(CONFIG["grid"]["rewards"]),
    seed=r"\d+",
    part="questions|probes|benchmark",
    detector="[a-z0-9-]+",
    judge="|".join(re.escape(name) for name in sorted(CONFIG["judges"])),
    replicate=r"\d+",
    policy=r"base/[^/]+|warmup/[^/]+/[^/]+/s\d+|grpo/[^/]+/[^/]+/(?:cold|warm)/[^/]+/s\d+",


def stage_spec(stage):
    """The spec of a stage as a function of the wildcards."""
    return lambda wildcards: SPECS.text(stage, **dict(wildcards))


def stage_operations(stage):
    """The settings of a stage that its spec leaves out.

    Snakemake compares no params that are made from outputs, so that a changed one reruns nothing.
    """
    return lambda wildcards, output: SPECS.operations(stage, **dict(wildcards))


def world_manifest(wildcards):
    """The embedded world, where rows come from it."""
    return "results/world/manifest.json" if CONFIG["data"]["source"] == "world" else []


def model_manifest(wildcards):
    """What builds the base model of `size` (or of the size in `policy`), if a rule does."""
    size = wildcards.get("size") or grid.parse_policy(wildcards.policy)["size"]
    return built_model(size)


def built_model(size):
    """Manifest of a model that a rule builds, or nothing."""
    return "results/world/manifest.json" if "build" in CONFIG["models"][size] else []


def detector_manifest(wildcards=None):
    """The refusal classifier, where a rule trains it."""
    train = CONFIG["detector"].get("train")
    return f"results/detector/{train['name']}/manifest.json" if train else []


def prompts_manifest(wildcards):
    """RWKU's sets as the evaluated policy's base model is asked them."""
    size = grid.parse_policy(wildcards.policy)["size"]
    return f"results/prompts/{size}/on/{wildcards.target}/manifest.json"


def base_evaluations(size):
    """Targets that the base model of a size is evaluated on."""
    return [e.target for e in EVALUATIONS if e.policy == grid.base_policy(size)]


def base_splits(wildcards):
    """Manifests of the splits of a base model's targets."""
    return [
        f"results/data/{target}/split/manifest.json"
        for target in base_evaluations(wildcards.size)
    ]


def base_prompts(wildcards):
    """Manifests of RWKU's sets as a base model is asked them."""
    return [
        f"results/prompts/{wildcards.size}/on/{target}/manifest.json"
        for target in base_evaluations(wildcards.size)
    ]


def base_rows(wildcards):
    """What one start of the engine made for a base model on all targets, where that is shared."""
    facts = grid.parse_policy(wildcards.policy)
    if facts["kind"] != "base" or not SPECS.shares_base_engine:
        return []
    return f"results/base_rows/{facts['size']}/rows.json"


def policy_manifest(wildcards):
    """The trained policy of an evaluation; a base model has none."""
    if wildcards.policy.startswith("base/"):
        return []
    return f"results/{wildcards.policy}/manifest.json"


def opinion_manifests(wildcards):
    """Manifests of every further opinion on the held-out completions."""
    return [
        manifest
        for opinion in opinions(CONFIG)
        for manifest in evaluation_manifests(paths.opinion_stage(**opinion))
    ]


def sampled_manifests(wildcards):
    """Manifests of every judge's labels of sampled completions."""
    folders = [
        paths.stage_dir(
            paths.sampled_stage(audit["judge"]), audit["policy"], audit["target"]
        )
        for audit in sampled_audits(CONFIG)
    ]
    return [f"{folder.as_posix()}/manifest.json" for folder in folders]


def terminal_manifests(wildcards):
    """Manifests of the audits of every cell's last rollouts."""
    cells = [paths.stage_dir("terminal", cell.policy, cell.target) for cell in CELLS]
    return [f"{folder.as_posix()}/manifest.json" for folder in cells]


def evaluation_manifests(stage):
    """Manifests of one stage (completions, audit, rwku, …) of every evaluation of the grid."""
    return [
        f"{paths.stage_dir(stage, e.policy, e.target).as_posix()}/manifest.json"
        for e in EVALUATIONS
    ]


def detector_rows(wildcards):
    """Rows of the targets that the detector is trained on, which the grid does not change."""
    targets = CONFIG["detector"]["train"]["targets"]
    parts = ("knowledge", "questions", "probes")
    return [f"results/data/{t}/{part}/manifest.json" for t in targets for part in parts]


def embedder_model(wildcards):
    """The model that embeds the forbidden terms, if a rule builds it."""
    size = CONFIG["term_weights"]["size"]
    return built_model(size) if size else []


def teacher_model(wildcards):
    """The model that answers for the teacher, if a rule builds it."""
    block = CONFIG["broad_answers"]
    return built_model(block["size"]) if block["provider"] == "policy" else []


def warmup_inputs(wildcards):
    """Split, answers, and what the monitor's reward needs."""
    target = wildcards.target
    inputs = {
        "split": f"results/data/{target}/split/manifest.json",
        "model": model_manifest(wildcards),
    }
    if CONFIG["warmup"]["objective"] == "broad":
        inputs["broad"] = f"results/data/{target}/broad/manifest.json"
    if CONFIG["warmup"]["monitor"]["enabled"]:
        name = "r2-rubric" if CONFIG["warmup"]["objective"] == "broad" else "r4-refusal"
        inputs |= reward_inputs(name, target)
    return inputs


def reward_inputs(reward, target):
    """Manifests that scoring with a reward needs: the detector, what the judge knows."""
    known = f"results/data/{target}/knowledge/manifest.json"
    weights = f"results/data/{target}/term_weights/manifest.json"
    inputs = {"detector": detector_manifest(), "knowledge": known, "weights": weights}
    needs = SPECS.needs(reward)
    return {name: path for name, path in inputs.items() if name in needs and path}


def knowledge_for(judge, target):
    """What a judge knows about the target, if it works by rules."""
    if not SPECS.judges_by_rules(judge):
        return []
    return f"results/data/{target}/knowledge/manifest.json"


def judge_knowledge(wildcards):
    """What the judge of an audit or of a further opinion knows."""
    judge = wildcards.get("judge") or CONFIG["audit"]["judge"]
    return knowledge_for(judge, wildcards.target)


def terminal_knowledge(wildcards):
    """What the judge of the last rollouts knows."""
    judge = CONFIG["terminal_audit"]["judge"] or CONFIG["audit"]["judge"]
    return knowledge_for(judge, wildcards.target)


def grpo_inputs(wildcards):
    """The prompts, the start adapter of a warm cell, and what the reward needs."""
    inputs = {
        "split": f"results/data/{wildcards.target}/split/manifest.json",
        "model": model_manifest(wildcards),
    }
    if wildcards.init == "warm":
        policy = grid.warmup_policy(wildcards.size, wildcards.target, wildcards.seed)
        inputs["start"] = f"results/{policy}/manifest.json"
    return inputs | reward_inputs(wildcards.reward, wildcards.target)


def trained_manifests(wildcards):
    """Manifests of every warm-up and every cell."""
    policies = [*grid.warmups(CELLS), *(cell.policy for cell in CELLS)]
    return [f"results/{policy}/manifest.json" for policy in policies]
