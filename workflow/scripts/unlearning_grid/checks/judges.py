"""What must fit together about judges: who is asked for what, with which prompt, and how."""

from collections.abc import Iterable, Iterator
from typing import Any

from unlearning_grid.checks.served import problems as problems_of_servers
from unlearning_grid.checks.served import server_name
from unlearning_grid.checks.words import one_of, variables
from unlearning_grid.config import Config
from unlearning_grid.judge.labels import LABEL_SETS, RUBRIC

Use = tuple[str, str, tuple[str, ...]]
"""(key that names a judge, the judge, the fields it is asked for; none for a teacher)."""


def problems(config: Config) -> Iterator[str]:
    """Every problem of the judges and of those who ask them."""
    uses = list(_uses(config))
    for key, name, _ in uses:
        yield from one_of(key, name, config["judges"], "Add it.")
    used = {name for _, name, _ in uses} & set(config["judges"])
    for name, judge in config["judges"].items():
        if judge["provider"] == "openai":
            yield from _remote(f"judges.{name}", judge, used=name in used)
        if judge["prompt_file"] and not config.file(judge["prompt_file"]).is_file():
            yield f'judges.{name}.prompt_file: no file "{judge["prompt_file"]}".'
    yield from problems_of_servers(config["judges"])
    for name in sorted({name for _, name, fields in uses if fields} & used):
        if config["judges"][name]["provider"] == "openai":
            yield from _prompt(config, name, uses)
    yield from _agreement(config)


def uses_rubric(config: Config) -> bool:
    """Whether R2 scores anything: a cell, or the warm-up's monitor."""
    warm = "warm" in config["grid"]["inits"]
    monitored = config["warmup"]["monitor"]["enabled"]
    broad = config["warmup"]["objective"] == "broad"
    return "r2-rubric" in config["grid"]["rewards"] or (warm and monitored and broad)


def _uses(config: Config) -> Iterator[Use]:
    """Who asks whom for what."""
    audit, terminal = config["audit"], config["terminal_audit"]
    fields = LABEL_SETS[audit["labels"]]
    yield "audit.judge", audit["judge"], fields
    for name in config["agreement"]["judges"]:
        yield "agreement.judges", name, fields
    if terminal["enabled"] and (terminal["judge"] or terminal["labels"]):
        key = "terminal_audit.judge" if terminal["judge"] else "terminal_audit.labels"
        labels = LABEL_SETS[terminal["labels"] or audit["labels"]]
        yield key, terminal["judge"] or audit["judge"], labels
    yield from _uses_of_samples(config, fields)
    if uses_rubric(config):
        yield "rewards.r2-rubric.judge", config["rewards"]["r2-rubric"]["judge"], RUBRIC
    for name, block in config["rewards"].items():
        if name in config["grid"]["rewards"] and name != "r2-rubric" and "judge" in block:
            yield f"rewards.{name}.judge", block["judge"], RUBRIC
    warm = "warm" in config["grid"]["inits"] and config["warmup"]["objective"] == "broad"
    if warm and config["broad_answers"]["provider"] == "api":
        yield "broad_answers.judge", config["broad_answers"]["judge"], ()


def _uses_of_samples(config: Config, fields: tuple[str, ...]) -> Iterator[Use]:
    block = config["sampled_audit"]
    if not block["enabled"]:
        return
    if block["judge"]:
        yield "sampled_audit.judge", block["judge"], fields
    for number, opinion in enumerate(block["opinions"]):
        yield f"sampled_audit.opinions.{number}.judge", opinion["judge"], fields


def _prompt(config: Config, name: str, uses: Iterable[Use]) -> Iterator[str]:
    """A judge's prompt must be there and name every field that it is asked for."""
    file = config["judges"][name]["prompt_file"]
    if not file:
        yield f"judges.{name}.prompt_file: missing; name the judge's system prompt."
        return
    if not config.file(file).is_file():
        return
    text = config.text(file)
    for key, judge, fields in uses:
        unnamed = [field for field in fields if field not in text]
        if judge == name and unnamed:
            yield (
                f"{key}: {name} is asked for {unnamed}, which its prompt ({file}) does not name; "
                "give it the prompt of this label set."
            )


def _agreement(config: Config) -> Iterator[str]:
    block, audit = config["agreement"], config["audit"]["judge"]
    for name in block["judges"]:
        if name == audit:
            yield f"agreement.judges: {name} is the audit's judge; ask it again by `replicates`."
    if block["replicates"] and config["judges"].get(audit, {}).get("provider") == "rules":
        yield f"agreement.replicates: {audit} works by rules, always the same; set it to 0."


def _remote(where: str, judge: Any, used: bool) -> Iterator[str]:
    if judge["api"] == "responses" and judge["structured"] != "json_schema":
        yield f"{where}.structured: {judge['structured']} needs `api: chat`."
    if "model" not in judge:
        yield f"{where}.model: missing; name the model."
    reasons = judge["effort"] not in (None, "none")
    if judge["base_url"] is None and reasons and judge["temperature"] is not None:
        yield f"{where}.temperature: a model that reasons takes none; set it or `effort` to null."
    if judge["base_url"] and server_name(judge["base_url"]) is None:
        if used:
            yield from variables(f"{where}.base_url", judge["base_url"])
        yield from _address(f"{where}.base_url", judge["base_url"])


def _address(where: str, url: str) -> Iterator[str]:
    if "@" in url or "?" in url:
        yield f"{where}: holds a secret; keep it in a variable, written as $NAME."
    elif not url.startswith(("http://", "https://", "$")):
        yield f'{where}: "{url}" is no address; write http://…, https://…, cluster:NAME or $NAME.'
