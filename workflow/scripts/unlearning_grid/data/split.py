"""Four disjoint prompt sets of one target, with the study's membership procedure.

Membership depends on the number of rows alone: shuffle (seed), cut to `max_rows`, take
`audit_fraction` as the held-out set, then from the rest the warm-up rows, then from those the
warm-up monitor set. Filters come after it and never move a row to another set.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unlearning_grid.data.rwku import read_jsonl, write_jsonl
from unlearning_grid.errors import UserError
from unlearning_grid.grid import split_sizes

if TYPE_CHECKING:
    from unlearning_grid.runtime.job import Job

log = logging.getLogger(__name__)

PARTS = ("heldout", "grpo_train", "sft_train", "sft_test")
PRIORITY = ("heldout", "sft_test", "sft_train", "grpo_train")
"""A prompt found in two sets stays in the earlier of these."""


@dataclass(frozen=True)
class Split:
    """Rows {"prompt_id", "prompt", "completion", "row"} of each set, and the counts."""

    heldout: list[dict]
    grpo_train: list[dict]
    sft_train: list[dict]
    sft_test: list[dict]
    report: dict[str, Any]

    def part(self, name: str) -> list[dict]:
        """Rows of one of PARTS."""
        return getattr(self, name)


def normalise_instruction(text: str) -> str:
    """Text before the first "?" plus one "?"; "" when there is no text before it.

    A text without "?" gets one appended, as in the authors' code.
    """
    head = text.partition("?")[0]
    return head + "?" if head.strip() else ""


def rows_needed(settings: Mapping[str, Any], limit: int = 100_000) -> int:
    """Fewest rows for which no set is empty before filters. Raises UserError if there is none."""
    probe = {**settings, "max_rows": None}
    for n_rows in range(4, limit):
        if min(split_sizes(n_rows, probe).values()) > 0:
            return n_rows
    raise UserError(f"split fractions {_fractions(settings)} leave a set empty at any size")


def _fractions(settings: Mapping[str, Any]) -> dict[str, float]:
    return {k: settings[k] for k in ("audit_fraction", "sft_train_fraction", "sft_test_fraction")}


def membership(n_rows: int, settings: Mapping[str, Any]) -> dict[str, list[int]]:
    """Row indices of each set, in the order in which `datasets` returns them."""
    from datasets import Dataset

    seed, max_rows = settings["seed"], settings["max_rows"]
    train, test = settings["sft_train_fraction"], settings["sft_test_fraction"]
    data = Dataset.from_dict({"row": list(range(n_rows))})
    if max_rows is not None:
        data = data.shuffle(seed=seed).select(range(min(n_rows, max_rows)))
    audit = data.train_test_split(test_size=settings["audit_fraction"], seed=seed)
    rest = audit["train"].train_test_split(test_size=test + train, seed=seed)
    sft = rest["test"].train_test_split(test_size=test / (test + train), seed=seed)
    parts = {
        "heldout": audit["test"],
        "grpo_train": rest["train"],
        "sft_train": sft["train"],
        "sft_test": sft["test"],
    }
    return {name: list(part["row"]) for name, part in parts.items()}


def split_rows(rows: list[dict], settings: Mapping[str, Any], slug: str) -> Split:
    """Split one target's rows; see the module docstring for the procedure.

    Dropped afterwards: rows with an empty instruction from any set; from the three training sets,
    prompts equal to one that a set of higher PRIORITY holds, and repeats within a set. The held-out
    set keeps its repeats, as the study does; they are counted.
    Settings: seed, audit_fraction, sft_train_fraction, sft_test_fraction, max_rows (int or None).
    Raises UserError when a set would be empty.
    """
    _check_size(len(rows), settings, slug)
    members = membership(len(rows), settings)
    items = {
        name: [_item(rows[index], index, slug) for index in indices]
        for name, indices in members.items()
    }
    kept, dropped = _filter(items)
    for name in PARTS:
        if not kept[name]:
            raise UserError(
                f"target {slug}: no usable prompt is left in {name}, all were empty or repeats of "
                "another set; give more rows or larger fractions"
            )
    report = _report(rows, items, kept, dropped)
    return Split(**{name: kept[name] for name in PARTS}, report=report)


def _check_size(n_rows: int, settings: Mapping[str, Any], slug: str) -> None:
    sizes = split_sizes(n_rows, settings)
    if min(sizes.values()) > 0:
        return
    raise UserError(
        f"target {slug}: {n_rows} rows (max_rows {settings['max_rows']}) give the sets {sizes}; "
        f"at least {rows_needed(settings)} rows are needed for {_fractions(settings)}"
    )


def _item(row: Mapping[str, Any], index: int, slug: str) -> dict:
    return {
        "prompt_id": f"{slug}-{index:03d}",
        "prompt": normalise_instruction(row["instruction"]),
        "completion": row["output"],
        "row": index,
    }


def _filter(items: Mapping[str, list[dict]]) -> tuple[dict[str, list[dict]], list[dict]]:
    """Kept items of each set, and one record for each dropped one."""
    holder: dict[str, tuple[str, str]] = {}  # prompt -> (set, prompt_id) that keeps it
    kept: dict[str, list[dict]] = {}
    dropped: list[dict] = []
    for name in PRIORITY:
        kept[name] = []
        for item in items[name]:
            record = {"prompt_id": item["prompt_id"], "split": name, "duplicate_of": None}
            if not item["prompt"]:
                dropped.append({**record, "reason": "empty"})
                continue
            owner = holder.setdefault(item["prompt"], (name, item["prompt_id"]))
            first = owner[1] == item["prompt_id"]
            if first or name == "heldout":
                kept[name].append(item)
                continue
            reason = "repeat" if owner[0] == name else f"in {owner[0]}"
            dropped.append({**record, "reason": reason, "duplicate_of": owner[1]})
    return kept, dropped


def _report(
    rows: list[dict],
    items: Mapping[str, list[dict]],
    kept: Mapping[str, list[dict]],
    dropped: list[dict],
) -> dict[str, Any]:
    texts = [row["instruction"] for row in rows]
    reasons = {name: Counter(d["reason"] for d in dropped if d["split"] == name) for name in PARTS}
    heldout = Counter(item["prompt"] for item in kept["heldout"])
    return {
        "rows": len(rows),
        "rows_used": sum(len(part) for part in items.values()),
        "rows_empty": sum(not text.strip() for text in texts),
        "rows_without_question_mark": sum("?" not in text for text in texts),
        "rows_with_text_after_question_mark": sum(
            bool(text.partition("?")[2].strip()) for text in texts
        ),
        "distinct_prompts": len(
            {item["prompt"] for part in items.values() for item in part} - {""}
        ),
        "heldout_repeats_kept": sum(heldout.values()) - len(heldout),
        "splits": {
            name: {
                "before": len(items[name]),
                "after": len(kept[name]),
                "empty": reasons[name]["empty"],
                "repeats_within": reasons[name]["repeat"],
                "repeats_of_other_sets": sum(
                    count for reason, count in reasons[name].items() if reason.startswith("in ")
                ),
                "without_question_mark": sum("?" not in texts[item["row"]] for item in kept[name]),
            }
            for name in PARTS
        },
        "dropped": dropped,
    }


def split(job: Job) -> dict:
    """Stage: split the rows of input "rows" (made by load_rows) into the outputs of PARTS.

    Settings: those of split_rows and source_config. Also writes output "report" (json).
    """
    settings, slug = job.settings, job.cell["target"]
    rows = read_jsonl(job.artefact("rows", "rows") / f"{settings['source_config']}.jsonl")
    result = split_rows(rows, settings, slug)
    for name in PARTS:
        write_jsonl(job.outputs[name], result.part(name))
    job.outputs["report"].write_text(
        json.dumps(result.report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
    for record in result.report["dropped"]:
        log.info("dropped %(prompt_id)s from %(split)s: %(reason)s", record)
    return {name: len(result.part(name)) for name in PARTS} | {
        "dropped": len(result.report["dropped"])
    }
