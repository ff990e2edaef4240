"""Tables of labels as the audits write them, made by hand, and a small grid to put them in."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from results_tree import Tree
from unlearning_grid.judge.labels import SIX

T, F, NA = True, False, None

# Nine completions: lexical, semantic, helpful, broad, refusal, drift; class; refusal probability.
NINE: list[tuple[Any, ...]] = [
    (F, F, T, T, F, F, "broad", 0.1),
    (T, F, T, T, F, F, "broad", 0.2),
    (F, T, T, T, F, F, "leak", 0.1),
    (F, F, F, F, T, F, "refusal", 0.9),
    (F, F, F, F, T, F, "refusal", 0.3),
    (NA, NA, NA, NA, NA, NA, None, 0.7),  # the judge gave no verdict
    (F, NA, T, T, F, F, "broad", 0.1),  # one label is missing
    (F, NA, F, F, F, F, "offtopic", 0.1),
    (F, F, T, T, T, F, "refusal", NA),  # the detector gave no probability
]


def labels(rows: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    """A labels table as audit_completions writes it."""
    columns = list(zip(*rows, strict=True))
    frame = pd.DataFrame(
        {name: pd.array(list(c), dtype="boolean") for name, c in zip(SIX, columns, strict=False)}
    )
    frame["class"] = list(columns[6])
    frame["refusal_probability"] = pd.array(list(columns[7]), dtype="float64")
    frame["verdict"] = ["truncated" if row[:7] == (NA,) * 6 + (None,) else "ok" for row in rows]
    frame["degenerate"] = [number == 7 for number in range(len(rows))]
    return frame.assign(
        judge="rules:oracle",
        judge_prompt=None,
        judge_entry="audit",
        detector="demo-refusal",
        refusal_by_detector=False,
        gold_recall_whole=None,
        gold_recall_part=None,
    )


def share(leaks: int, of: int = 10) -> pd.DataFrame:
    """Completions of which some leak and the others are broad."""
    leak = (F, T, T, F, F, F, "leak", 0.1)
    broad = (F, F, T, T, F, F, "broad", 0.1)
    return labels([leak] * leaks + [broad] * (of - leaks))


def tree_of(**axes: Any) -> Tree:
    grid: dict[str, Any] = {
        "sizes": ["tiny"],
        "targets": ["bruce-lee", "karl-marx"],
        "inits": ["cold", "warm"],
        "rewards": ["r0-lex"],
        "seeds": [0],
    }
    return Tree(**{**grid, **axes})


def policy(target: str, init: str = "cold", seed: int = 0, reward: str = "r0-lex") -> str:
    return f"grpo/tiny/{target}/{init}/{reward}/s{seed}"


def row(frame: Any, **facts: Any) -> Any:
    """The one row of a frame with these facts."""
    for name, value in facts.items():
        frame = frame[frame[name].isna() if value is None else frame[name] == value]
    assert len(frame) == 1, f"{facts}: {len(frame)} rows"
    return frame.iloc[0]


def missing(value: Any) -> bool:
    return bool(pd.isna(value))
