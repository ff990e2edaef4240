"""Every edit of the table, by kind, in the order in which docs/reruns.md shows them."""

from invalidation.changes import Edit
from invalidation.edits.code import CODE
from invalidation.edits.environments import ENVIRONMENTS
from invalidation.edits.files import FILES, RESULTS
from invalidation.edits.grid import GRID
from invalidation.edits.judging import JUDGING
from invalidation.edits.operational import OPERATIONAL
from invalidation.edits.training import TRAINING

EDITS: dict[str, list[Edit]] = {
    "The grid": GRID,
    "Models, data and training": TRAINING,
    "Judges, audits and benchmark": JUDGING,
    "Settings that change no result": OPERATIONAL,
    "Names, terms, prompts": FILES,
    "Code": CODE,
    "Environments and profiles": ENVIRONMENTS,
    "Results": RESULTS,
}
