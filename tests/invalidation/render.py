"""Write the tables of docs/reruns.md.

PYTHONPATH=workflow/scripts:tests python -m invalidation.render
"""

from collections.abc import Iterator, Mapping

from invalidation.changes import Edit, keys_of
from invalidation.edits import EDITS
from invalidation.expected import in_words
from invalidation.key_table import KEYS, PROMPTS, VARIANTS
from invalidation.module_table import MODULES
from support import ROOT

DOCUMENT = ROOT / "docs" / "reruns.md"
BEGIN = "<!-- made by `make docs` from tests/invalidation: edit that -->"
END = "<!-- end of what is made -->"

MODULES_NOTE = (
    "The stages whose code a module is part of; what follows them is run again, too. The most "
    "exact line counts. `far` is a judge behind an API; `lower-bound` works by rules, like the "
    "audit's judge."
)
KEYS_NOTE = (
    "The stages whose specs hold a key or a prompt. Here the audit's judge and the training judge "
    "are behind an API, and `lower-bound` works by rules."
)
TITLES = {
    "TRAINING": "warm-ups, cells",
    "RUBRIC": "warm-ups, R2 cells",
    "LEXICAL": "lexical cells",
    "AUDITS": "audits",
    "RULES": "audits, warm-ups and R2 cells, where a judge works by rules",
    "ASKED": "completions, likelihoods",
    "LABEL_TABLES": "tables of labels",
    "RWKU_TABLES": "tables of RWKU",
    "TABLES": "the tables",
    "train_warmup": "warm-ups",
    "train_grpo": "cells",
}
"""Groups of stages (module_table.GROUPS), and stages, in words; others are named as rules."""


def tables() -> str:
    """What stands between the two markers."""
    lines = []
    for kind, edits in EDITS.items():
        lines += [f"### {kind}", "", "| edit | planned |", "| --- | --- |"]
        lines += [f"| {_name(edit)} | {in_words(edit.planned)} |" for edit in edits]
        lines.append("")
    lines += ["### Every module", "", MODULES_NOTE, "", *_stages("module", MODULES), ""]
    lines += ["### Every key and prompt of the configuration", "", KEYS_NOTE, ""]
    lines += [*_stages("key or prompt", _keys()), ""]
    return "\n".join(lines)


def _keys() -> dict[str, str]:
    """Lines of keys and prompts; those of other kinds of grid, where this one has none."""
    found: dict[str, str] = {}
    for lines in (KEYS, *(lines for _, lines in VARIANTS.values()), PROMPTS):
        for name, line in lines.items():
            block = f"{name.rpartition('.')[0]}.*"
            if line and name not in found and (lines is KEYS or not KEYS.get(block)):
                found[name.replace("{name}", "*")] = line
    return found


def _name(edit: Edit) -> str:
    """What is edited, with the keys that it sets in a configuration."""
    keys = keys_of(edit.change)
    listed = ", ".join(f"`{key.replace('/', '.')}`" for key in keys)
    return f"{edit.name} ({listed})" if keys and "`" not in edit.name else edit.name


def _stages(head: str, table: Mapping[str, str]) -> Iterator[str]:
    """A table of lines: what they are of, all with the same stages together."""
    together: dict[str, list[str]] = {}
    for name, stages in table.items():
        together.setdefault(stages, []).append(f"`{name}`")
    yield f"| {head} | stages |"
    yield "| --- | --- |"
    for stages, names in sorted(together.items(), key=lambda item: item[0] == "-"):
        yield f"| {', '.join(names)} | {_words(stages)} |"


def _words(stages: str) -> str:
    if stages == "-":
        return "none"
    parts = []
    for word in stages.split():
        rule, _, more = word.partition(":")
        if word in TITLES:
            parts.append(TITLES[word])
        elif rule == "train_grpo":
            parts.append(f"{more} cells")
        else:
            parts.append(f"`{rule}`" + (f" by {more}" if more else ""))
    return ", ".join(parts)


def document(text: str) -> str:
    """The document with its tables made anew."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{tables()}{END}{tail}"


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
