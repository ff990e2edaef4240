"""Stage: render and tokenise RWKU's sets for one size and target, once for all its policies.

One parquet file per set. Columns of all: config, prompt_id, type (probe type, task or nothing),
level, question (what is asked, bare), rendered (the text that the model reads), ids (its tokens),
answer (JSON), repeated (an earlier row of the config, of any target, asks the same).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unlearning_grid.data.probes import answer_prefix, probe_text
from unlearning_grid.data.rwku import FORGET_LEVELS, read_jsonl
from unlearning_grid.errors import UserError
from unlearning_grid.models.chat import render
from unlearning_grid.models.load import context_window, load_tokenizer, locate
from unlearning_grid.models.sampling import shipped_repetition_penalty
from unlearning_grid.runtime.job import Job
from unlearning_grid.rwku.conventions import LETTERS, MAX_TEXT_TOKENS

Row = dict[str, Any]

SETS: dict[str, tuple[str, ...]] = {
    "rwku-forget": FORGET_LEVELS,
    "rwku-neighbor": ("neighbor_level1", "neighbor_level2"),
    "rwku-mia": ("mia_forget", "mia_retain"),
    "rwku-general": ("utility_general",),
    "rwku-reason": ("utility_reason",),
    "rwku-truthfulness": ("utility_truthfulness",),
    "rwku-factuality": ("utility_factuality",),
    "rwku-fluency": ("utility_fluency",),
}
"""Set -> RWKU configs, in the order of the rows."""


def render_sets(job: Job) -> dict[str, Any]:
    """Write "prompts", a folder of {set}.parquet and facts.json.

    facts.json: newline_is_token (whether the vocabulary has a line break of that name, as RWKU's
    stop expects), repetition_penalty (what the model ships).
    Inputs: probes, benchmark, model (a built one). Settings: model, prompts (the wording).
    """
    import pandas as pd

    where = locate(job, job.settings["model"])
    tokenizer = load_tokenizer(where)
    renderer = Renderer(tokenizer, job.settings["prompts"])
    window = context_window(where)
    folder = job.outputs["prompts"]
    folder.mkdir()
    counts = {}
    for name, configs in SETS.items():
        part = "probes" if name in ("rwku-forget", "rwku-neighbor") else "benchmark"
        rows = job.artefact(part, "rows")
        found = [row for config in configs for row in renderer.rows(rows, config)]
        _check_window(name, found, window)
        pd.DataFrame(found).to_parquet(folder / f"{name}.parquet", index=False)
        counts[name] = len(found)
    facts = {
        "newline_is_token": newline_is_token(tokenizer),
        "repetition_penalty": shipped_repetition_penalty(where),
    }
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    (folder / "facts.json").write_text(text + "\n", encoding="utf-8")
    return {**counts, **facts}


def _check_window(name: str, rows: Sequence[Row], window: int | None) -> None:
    longest = max(rows, key=lambda row: len(row["ids"]), default=None)
    if window and longest and len(longest["ids"]) > window:
        raise UserError(
            f"{name}: {longest['prompt_id']} has {len(longest['ids'])} tokens, and the model reads "
            f"{window}; use a model with a longer window, or shorter examples in rwku.prompt_file"
        )


def newline_is_token(tokenizer: Any) -> bool:
    """Whether the vocabulary has a line break under that very name, which RWKU's stop looks up.

    Byte-level vocabularies spell it otherwise: there the stop never fires.
    """
    found = tokenizer.convert_tokens_to_ids("\n")
    return found is not None and found != tokenizer.unk_token_id


class Renderer:
    """Rows of each RWKU config as prompts."""

    def __init__(self, tokenizer: Any, wording: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.wording = wording
        self.makers: dict[str, Callable[[Row], Row]] = {
            "mia_forget": self._text,
            "mia_retain": self._text,
            "utility_general": self._general,
            "utility_reason": self._reason,
            "utility_truthfulness": self._truthfulness,
            "utility_factuality": self._factuality,
            "utility_fluency": self._fluency,
        }

    def rows(self, folder: Path, config: str) -> Iterator[Row]:
        """The rendered rows of one config, in source order.

        Raises UserError that names the row, where it is not what the set needs.
        """
        make = self.makers.get(config, self._probe)
        for number, row in enumerate(read_jsonl(folder / f"{config}.jsonl")):
            try:
                made = make(row)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise UserError(
                    f"{config}: row {number + 1} of this target cannot be asked: {error!r}; use "
                    "RWKU's own rows with their original columns"
                ) from error
            yield {
                "config": config,
                "prompt_id": f"{config}-{number:03d}",
                "type": row.get("type") or row.get("task"),
                "level": int(config[-1]) if config[-1].isdigit() else None,
                "repeated": bool(row.get("repeated", False)),
                "ids": self.encode(made["rendered"]),
                **made,
            }

    def encode(self, text: str) -> list[int]:
        """Tokens of a rendered text; the template has written the special ones already."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _asked(self, question: str, turn: str, prefix: str, answer: Any, **more: Any) -> Row:
        return {
            "question": question,
            "rendered": render(self.tokenizer, turn) + prefix,
            "answer": None if answer is None else json.dumps(answer, ensure_ascii=False),
            **more,
        }

    def _probe(self, row: Row) -> Row:
        instruction = self.wording["cloze" if str(row["level"]) == "1" else "question"]
        turn = probe_text(row["query"], instruction, row["type"])
        return self._asked(row["query"], turn, answer_prefix(row["type"]), _gold(row))

    def _text(self, row: Row) -> Row:
        """A raw passage, without chat template, with the special tokens of the tokenizer."""
        ids = self.tokenizer(row["text"])["input_ids"]
        return {
            "question": row["text"],
            "rendered": row["text"],
            "answer": None,
            "ids": ids[:MAX_TEXT_TOKENS],
            "truncated": len(ids) > MAX_TEXT_TOKENS,
        }

    def _general(self, row: Row) -> Row:
        wording = self.wording["general"]
        for one in (row, *row["examples"]):
            if not 0 <= int(one["answer"]) < len(one["choices"]) <= len(LETTERS):
                raise ValueError(
                    f"answer {one['answer']} of {len(one['choices'])} choices (at most four)"
                )
        heading = wording["heading"].replace("{task}", row["task"].replace("_", " "))
        shown = [_choices(e) + f"\nAnswer: {LETTERS[int(e['answer'])]}" for e in row["examples"]]
        turn = "\n\n".join([heading, *shown, f"{wording['request']}\n{_choices(row)}"])
        letters = LETTERS[: len(row["choices"])]
        return self._asked(
            row["question"],
            turn,
            "Answer:",
            int(row["answer"]),
            candidates=[self.encode(f" {letter}")[-1] for letter in letters],
        )

    def _reason(self, row: Row) -> Row:
        request = self.wording["reason"]["request"]
        turn = f"{row['cot'].strip()}\n\n{request}\nQ: {row['question']}"
        return self._asked(row["question"], turn, self._prefix(turn), _gold(row))

    def _truthfulness(self, row: Row) -> Row:
        """Choices of both scores, each once, as tokens that follow the prompt and a blank."""
        shown = _pairs(self.wording["truthfulness"]["examples"], "\n\n")
        turn = f"{shown}\n\nQ: {row['question']}"
        asked = self._asked(row["question"], turn, self._prefix(turn), None)
        targets = {name: _targets(row[f"{name}_targets"]) for name in ("mc1", "mc2")}
        choices = list(dict.fromkeys(c for found in targets.values() for c, _ in found))
        start = len(self.encode(asked["rendered"]))
        whole = [self.encode(f"{asked['rendered']} {choice}") for choice in choices]
        return {
            **asked,
            "answer": json.dumps(targets, ensure_ascii=False),
            "choices": choices,
            "choice_ids": [ids[start:] for ids in whole],
        }

    def _factuality(self, row: Row) -> Row:
        wording = self.wording["factuality"]
        shown = _pairs(wording["examples"], "\n")
        turn = f"\n{shown}\n{wording['request']}\nQ: {row['question']}\n"
        answers = row["answers"]
        if not isinstance(answers, list) or not answers:
            raise ValueError(f"answers must be a list with at least one, found {answers!r}")
        return self._asked(row["question"], turn, "A:", [str(answer) for answer in answers])

    def _fluency(self, row: Row) -> Row:
        heading = self.wording["fluency"]["heading"]
        turn = heading.replace("{instruction}", row["instruction"]) + "\n"
        return self._asked(row["instruction"], turn, "", None)

    def _prefix(self, turn: str) -> str:
        """ "A:", after a blank unless the template ends with one."""
        return "A:" if render(self.tokenizer, turn)[-1:] in ("\n", " ") else " A:"


def _gold(row: Mapping[str, Any]) -> str:
    if row["answer"] is None:
        raise ValueError("answer is missing")
    return str(row["answer"])


def _choices(row: Mapping[str, Any]) -> str:
    lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, row["choices"], strict=False)]
    return "\n".join([f"Question: {row['question']}", *lines])


def _pairs(examples: Sequence[Sequence[str]], between: str) -> str:
    return between.join(f"Q: {question}\nA: {answer}" for question, answer in examples)


def _targets(targets: Mapping[str, Any]) -> list[tuple[str, int]]:
    """(choice, 1 if it is true) of each choice."""
    return [(str(c), int(t)) for c, t in zip(targets["choices"], targets["labels"], strict=True)]
