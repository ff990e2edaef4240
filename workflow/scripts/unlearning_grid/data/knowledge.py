"""What a rules judge knows about one target: its names, its facts and, in a closed world, all else.

On real data the knowledge is open: the facts are gold answers of the probes, so whatever is
counted with them is a lower bound.  In the embedded world it is closed: every sentence that the
model was trained on is known.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from unlearning_grid.errors import UserError


def normalise_prompt(text: str) -> str:
    """Key under which a prompt is looked up: NFKC, one space between words, case folded.

    Nothing is cut off, so two different questions never share a key.
    """
    return " ".join(unicodedata.normalize("NFKC", text).split()).casefold()


@dataclass(frozen=True)
class Knowledge:
    """Names and facts of one target; the fields after ``gold`` are empty on real data.

    ``gold``: the forget probes as {"prompt", "answer", "level"}, empty in a closed world.
    ``prompts`` maps a normalised prompt to its gold ``answer`` and its broad ``topic``;
    ``others`` maps another person to that person's names and facts; ``broad`` maps a topic to its
    sentences; ``sentences`` are all other harmless sentences.
    """

    subject: str
    names: list[str]
    facts: list[str]
    closed: bool = False
    gold: list[dict[str, str]] = field(default_factory=list)
    prompts: dict[str, dict[str, str]] = field(default_factory=dict)
    others: dict[str, list[str]] = field(default_factory=dict)
    broad: dict[str, list[str]] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def entry(self, prompt: str) -> dict[str, str] | None:
        """Gold answer and topic of a prompt, or None where the prompt is not known."""
        return self.prompts.get(normalise_prompt(prompt))


def load_knowledge(path: Path) -> Knowledge:
    """Read a knowledge file.  Raises UserError if it is not a knowledge object."""
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"file {path}: cannot be read as JSON ({error}); build it again") from error
    known = {f.name for f in fields(Knowledge)}
    if not isinstance(raw, dict):
        raise UserError(f"file {path}: holds no JSON object; build it again")
    wrong = sorted(set(raw) - known)
    missing = sorted({"subject", "names", "facts", "closed"} - set(raw))
    if wrong or missing:
        raise UserError(
            f"file {path}: not a knowledge file (unknown keys {wrong}, missing keys {missing}); "
            "build it again"
        )
    return Knowledge(**raw)


def dump_knowledge(knowledge: Knowledge, path: Path) -> None:
    """Write a knowledge file: UTF-8 JSON with sorted keys, the same bytes for the same content."""
    text = json.dumps(asdict(knowledge), ensure_ascii=False, indent=1, sort_keys=True)
    Path(path).write_text(text + "\n", encoding="utf-8")
