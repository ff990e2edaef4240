"""Four disjoint prompt sets of one target, with the study's membership procedure.

Membership depends on the number of rows alone: shuffle (seed), cut to `max_rows`, take
`audit_fraction` as the held-out set, then from the rest the warm-up rows, then from those the
warm-up monitor set. Filters come after it and never move a row to another set.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unlearning_grid.data.rwku import read_jsonl, write_jsonl
from unlearning_grid.errors import UserError

if TYPE_CHECKING:
    from unlearning_grid.runtime.job import Job

log = logging.getLogger(__name__)

PARTS = ("heldout", "grpo_train", "sft_train", "sft_test")
PRIORITY = ("heldout", "sft_test", "sft_train", "grpo_train")
"""A prompt found in two sets stays in the earlier of these."""

QUESTION_MARK = ("study", "keep")


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


def normalise_instruction(text: str, question_mark: str = "study") -> str:
    """Text before the first "?" plus one "?"; "" when there is no text before it.

    A text without "?" gets one appended under "study" (as the authors' code does) and stays as it
    is under "keep".
    """
    head, mark, _ = text.partition("?")
    if not head.strip():
        return ""
    return head + "?" if mark or question_mark == "study" else head


def expected_sizes(n_rows: int, settings: Mapping[str, Any]) -> dict[str, int]:
    """Rows of each set before filters: every cut takes the ceiling of fraction x rows.

    The float arithmetic is the study's: 0.05 + 0.10 of 240 rows gives 37, not 36, so 300 rows give
    60 / 203 / 24 / 13.
    """
    max_rows = settings["max_rows"]
    used = n_rows if max_rows is None else min(n_rows, max_rows)
    sft_fraction, monitor_fraction = _sft_fractions(settings)
    heldout = math.ceil(settings["audit_fraction"] * used)
    sft = math.ceil(sft_fraction * (used - heldout))
    monitor = math.ceil(monitor_fraction * sft)
    return {
        "heldout": heldout,
        "grpo_train": used - heldout - sft,
        "sft_train": sft - monitor,
        "sft_test": monitor,
    }


def rows_needed(settings: Mapping[str, Any], limit: int = 100_000) -> int:
    """Fewest rows for which no set is empty before filters. Raises UserError if there is none."""
    probe = {**settings, "max_rows": None}
    for n_rows in range(4, limit):
        if min(expected_sizes(n_rows, probe).values()) > 0:
            return n_rows
    raise UserError(f"split fractions {_fractions(settings)} leave a set empty at any size")


def _fractions(settings: Mapping[str, Any]) -> dict[str, float]:
    return {k: settings[k] for k in ("audit_fraction", "sft_train_fraction", "sft_test_fraction")}


def _sft_fractions(settings: Mapping[str, Any]) -> tuple[float, float]:
    fractions = _fractions(settings)
    for key, value in fractions.items():
        if not 0 < value < 1:
            raise UserError(
                f"split.{key}: {value} is not between 0 and 1; give a share of the rows"
            )
    train, test = settings["sft_train_fraction"], settings["sft_test_fraction"]
    if train + test >= 1:
        raise UserError(
            f"split.sft_train_fraction + split.sft_test_fraction = {train + test} leaves nothing "
            "for GRPO; their sum must be below 1"
        )
    return test + train, test / (test + train)


def membership(n_rows: int, settings: Mapping[str, Any]) -> dict[str, list[int]]:
    """Row indices of each set, in the order in which `datasets` returns them."""
    from datasets import Dataset

    seed, max_rows = settings["seed"], settings["max_rows"]
    sft_fraction, monitor_fraction = _sft_fractions(settings)
    data = Dataset.from_dict({"row": list(range(n_rows))})
    if max_rows is not None:
        data = data.shuffle(seed=seed).select(range(min(n_rows, max_rows)))
    audit = data.train_test_split(test_size=settings["audit_fraction"], seed=seed)
    rest = audit["train"].train_test_split(test_size=sft_fraction, seed=seed)
    sft = rest["test"].train_test_split(test_size=monitor_fraction, seed=seed)
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
    Settings: seed, audit_fraction, sft_train_fraction, sft_test_fraction, max_rows (int or None),
    question_mark ("study", the default, or "keep").
    Raises UserError when a set would be empty or a setting has no meaning.
    """
    mark = settings.get("question_mark", "study")
    if mark not in QUESTION_MARK:
        raise UserError(f"split.question_mark: {mark!r} is unknown; one of {list(QUESTION_MARK)}")
    _check_size(len(rows), settings, slug)
    members = membership(len(rows), settings)
    items = {
        name: [_item(rows[index], index, slug, mark) for index in indices]
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
    sizes = expected_sizes(n_rows, settings)
    if min(sizes.values()) > 0:
        return
    raise UserError(
        f"target {slug}: {n_rows} rows (max_rows {settings['max_rows']}) give the sets {sizes}; "
        f"at least {rows_needed(settings)} rows are needed for {_fractions(settings)}"
    )


def _item(row: Mapping[str, Any], index: int, slug: str, mark: str) -> dict:
    return {
        "prompt_id": f"{slug}-{index:03d}",
        "prompt": normalise_instruction(row["instruction"], mark),
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
