"""Edits of the files beside the code, and of results."""

from invalidation.changes import Edit, append, both, copy, delete, replace, touch_everything
from invalidation.changes import Settings as Set
from invalidation.expected import (
    COMPLETIONS,
    DETECTOR_AGAIN,
    EVERYTHING,
    NOTHING,
    TABLES,
    below,
    without,
)

TERMS = "resources/demo/forbidden_terms.yaml"
RWKU = "config/prompts/reworded-v1/rwku.yaml"
CELL = "results/grpo/tiny/bruce-lee/cold/r0-lex/s0"

ONE_TERM = Edit(
    "one term of one target: the lexical cells of this target",
    replace(TERMS, "Jeet Kune Do", "Jeet Kune"),
    below(cells=4),
)

FILES = [
    ONE_TERM,
    Edit(
        "one hard term, which the lower-bound judge looks for, too",
        replace(TERMS, "hard: [Bruce Lee", "hard: [Bruce Lee Jr"),
        below(cells=4) | {"audit_again": 10},
    ),
    Edit(
        "a term of a target that is not in the grid",
        replace(TERMS, "hard: [Mira Solberg", "hard: [Mira Solberg Jr"),
        NOTHING,
    ),
    Edit(
        "the same terms in another file",
        both(copy(TERMS, "resources/mine.yaml"), Set({"resources/terms": "resources/mine.yaml"})),
        NOTHING,
    ),
    Edit(
        "a further name of one target",
        replace("resources/targets.yaml", "Karl Heinrich Marx", "Carl Heinrich Marx"),
        {"write_knowledge": 1, "write_broad_answers": 1}
        | DETECTOR_AGAIN
        | {"audit_samples": 10 + 8},  # of this target, and of the other's policies
    ),
    Edit(
        "a fact of the demo's world",
        replace("resources/demo/world.yaml", "martial artist", "martial arts teacher"),
        EVERYTHING,
    ),
    Edit(
        "a sentence that the detectors are checked on",
        replace("resources/refusal_sentences.yaml", "refusal: true", "refusal: false"),
        {"evaluate_refusal_detectors": 1, **TABLES},
    ),
    Edit(
        "how RWKU's sets are asked",
        replace(RWKU, "Answer the last question in the same way.", "Answer the last question."),
        {"render_rwku": 2, "score_likelihoods": 20} | COMPLETIONS | TABLES,
    ),
    Edit(
        "how RWKU's probes are asked, which the demo's model learns",
        replace(RWKU, "Answer the question briefly.", "Answer in a few words."),
        EVERYTHING,
    ),
    Edit(
        "the same wording in another file",
        both(copy(RWKU, "config/mine.yaml"), Set({"rwku/prompt_file": "config/mine.yaml"})),
        NOTHING,
    ),
    Edit(
        "a prompt that no judge of the grid has",
        append("config/prompts/reworded-v1/audit-six.txt", "\nBe strict.\n"),
        NOTHING,
    ),
    Edit("another grid's configuration", Set({"grpo/beta": 0.5}, "config/config.yaml"), NOTHING),
]

RESULTS = [
    Edit("new times for every file, results too", touch_everything, NOTHING),
    Edit(
        "a table deleted",
        delete("results/tables/cells.parquet"),
        {"build_cells_table": 1, "all": 1},
    ),
    Edit("a trained cell deleted (its tables are there)", delete(CELL), NOTHING),
    Edit(
        "a trained cell deleted, and its manifest asked for beside `all`",
        delete(CELL),
        without(below(cells=1), "write_plan"),
        targets=("all", f"{CELL}/manifest.json"),
    ),
    Edit("an output of a cell deleted", delete(f"{CELL}/metrics.parquet"), NOTHING),
]
