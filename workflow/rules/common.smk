"""The checked configuration, the specs, and the few input functions that rules share.

Everything with logic is in the library; here it is only tied to wildcards.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir) / "workflow" / "scripts"))

from snakemake.exceptions import WorkflowError
from unlearning_grid import config as grid_config
from unlearning_grid import grid, paths
from unlearning_grid.errors import UserError
from unlearning_grid.ops.state import state_digest
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
    part="questions|probes",
    detector="[a-z0-9-]+",
    policy=r"base/[^/]+|warmup/[^/]+/[^/]+/s\d+|grpo/[^/]+/[^/]+/(?:cold|warm)/[^/]+/s\d+",


def stage_spec(stage):
    """The spec of a stage as a function of the wildcards."""
    return lambda wildcards: SPECS.text(stage, **dict(wildcards))


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


def policy_manifest(wildcards):
    """The trained policy of an evaluation; a base model has none."""
    if wildcards.policy.startswith("base/"):
        return []
    return f"results/{wildcards.policy}/manifest.json"


def evaluation_manifests(stage):
    """Manifests of one stage (completions, audit, rwku) of every evaluation of the grid."""
    return [
        f"{paths.stage_dir(stage, e.policy, e.target).as_posix()}/manifest.json"
        for e in EVALUATIONS
    ]
