"""What must fit together in `sampled_audit`: who labels all samples, and who a part of them.

That the judges exist, and know the labels, is checked with all others (checks.judges).
"""

from collections.abc import Iterator

from unlearning_grid.config import Config
from unlearning_grid.grid import evaluations, is_meant, split_sizes


def problems(config: Config) -> Iterator[str]:
    """Every problem of the block, where it is enabled."""
    block = config["sampled_audit"]
    if not block["enabled"]:
        return
    yield from _judge(config)
    everything = evaluations(config.cells)
    for number, opinion in enumerate(block["opinions"]):
        if not any(is_meant(one, opinion["where"]) for one in everything):
            yield (
                f"sampled_audit.opinions.{number}.where: {opinion['where']} matches no evaluation; "
                "correct it, or remove the entry."
            )


def _judge(config: Config) -> Iterator[str]:
    """Nobody pays for every sample of a grid by leaving out a line."""
    block = config["sampled_audit"]
    name = block["judge"] or config["audit"]["judge"]
    judge = config["judges"].get(name)
    if judge is None or judge["provider"] == "rules":
        return
    prompts = split_sizes(config["split"]["max_rows"] or 300, config["split"])["heldout"]
    number = len(evaluations(config.cells))
    prompts = min(prompts, block["max_prompts"] or prompts)
    total = block["samples"] * prompts * number
    yield (
        f"sampled_audit.judge: {name} asks {judge.get('model')}, about {total:,} times "
        f"({block['samples']} samples of {prompts} prompts in {number} evaluations); name an entry "
        "of `judges` with provider rules, and list what a paid judge is to see in "
        "sampled_audit.opinions."
    )
