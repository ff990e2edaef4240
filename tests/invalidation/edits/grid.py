"""Edits of the grid's axes: what is new is computed, what is finished stays."""

from invalidation.changes import DEMO, Edit, append, both, nothing, replace
from invalidation.changes import Settings as Set
from invalidation.expected import EVALUATION, NOTHING, TABLES, below

TERMS = "resources/demo/forbidden_terms.yaml"
REWARDS = ["r0-lex", "r1-antirefusal", "r2-rubric", "r4-refusal"]

ONE_MORE_SEED = Edit("one more seed", Set({"grid/seeds": [0, 1]}), below(cells=16, warmups=2))

GRID = [
    Edit("nothing at all", nothing, NOTHING),
    ONE_MORE_SEED,
    Edit("one more reward", Set({"grid/rewards": [*REWARDS, "r3-fuzzy"]}), below(cells=4)),
    Edit(
        "one more reward, which weighs its terms",
        Set({"grid/rewards": [*REWARDS, "pagerank-lex"], "term_weights/size": "tiny"}),
        below(cells=4) | {"weigh_terms": 2},
    ),
    Edit(
        "one more size",
        Set({"models/small": {"build": "world"}, "grid/sizes": ["tiny", "small"]}),
        below(cells=16, warmups=2) | dict.fromkeys(EVALUATION, 20) | {"render_rwku": 2},
    ),
    Edit(
        "one more target",
        both(
            Set({"grid/targets": ["bruce-lee", "karl-marx", "confucius"]}),
            append(
                "resources/demo/forbidden_terms.yaml", "\nconfucius: {hard: [Kongzi], soft: [Lu]}\n"
            ),
        ),
        below(cells=8, warmups=1)
        | dict.fromkeys(EVALUATION, 10)
        | {
            "load_rows": 3,
            "write_knowledge": 1,
            "split_target": 1,
            "write_broad_answers": 1,
            "render_rwku": 1,
        },
    ),
    Edit("one target less", Set({"grid/targets": ["karl-marx"]}), TABLES),
    Edit("one reward less", Set({"grid/rewards": REWARDS[:3]}), TABLES),
    Edit("no warm starts any more", Set({"grid/inits": ["cold"]}), TABLES),
    Edit(
        "some cells left out",
        Set({"grid/exclude": [{"init": "cold", "reward": "r2-rubric"}]}),
        TABLES,
    ),
    Edit(
        "the rewards in another order",
        Set({"grid/rewards": [*REWARDS[2:], *REWARDS[:2]]}),
        TABLES,
    ),
    Edit("the grid's name", Set({"name": "another"}), TABLES),
    Edit(
        "another order of keys and spelling of a value",
        replace(DEMO, "lora: {rank: 16, alpha: 32}", "lora: {alpha: 32, rank: 0x10}"),
        NOTHING,
    ),
    Edit("a default written out", Set({"grpo/beta": 0.04}), NOTHING),
]
