"""Stage: write down what the grid should hold (results/plan/plan.json)."""

from typing import Any

from unlearning_grid.config import load
from unlearning_grid.errors import UserError
from unlearning_grid.runtime.atomic import write_json
from unlearning_grid.runtime.job import Job
from unlearning_grid.spec.canonical import digest
from unlearning_grid.spec.stages import Specs


def write(job: Job) -> dict[str, Any]:
    """Compute the plan of the configuration in the spec.

    Raises UserError when it is not the one that Snakemake planned with, because a file that the
    configuration names has changed in between.
    """
    plan = Specs(load(job.settings["config"])).plan()
    if digest(plan) != job.settings["plan"]:
        raise UserError("terms, prompts or code changed while the grid was running; start it again")
    write_json(job.outputs["plan"], plan)
    return {"cells": len(plan["cells"]), "evaluations": len(plan["evaluations"])}
