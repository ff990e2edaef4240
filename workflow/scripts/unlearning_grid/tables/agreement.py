"""Stage: how far judges agree on the same held-out completions.

Compared are the audit with every further opinion (another judge, another prompt, or the same judge
asked again) and, for the label `refusal`, the audit with the refusal detector. Agreement is no
proof that either is right; a low one bounds what a rate by that judge can carry.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unlearning_grid.judge.labels import SIX
from unlearning_grid.paths import opinion_stage
from unlearning_grid.rewards.base import DETECTOR_THRESHOLD
from unlearning_grid.runtime.job import Job
from unlearning_grid.tables.aggregate import KEYS, ORDER, evaluation_facts
from unlearning_grid.tables.files import write_table
from unlearning_grid.tables.heldout import rounded
from unlearning_grid.tables.results import Results, open_results

JUDGES, RETEST, DETECTOR = "judges", "retest", "detector"
NAMES = (
    "comparison",
    "first",
    "first_prompt",
    "first_entry",
    "second",
    "second_prompt",
    "second_entry",
    "replicate",
)


def build(job: Job) -> dict[str, Any]:
    """Write "table" and "csv"."""
    frame = agreement_table(open_results(job.inputs["plan"]))
    write_table(frame, job.outputs["table"], job.outputs["csv"])
    return {"rows": len(frame)}


def agreement_table(results: Results) -> Any:
    """One row per comparison, group of policies (or all) and label."""
    import pandas as pd

    pairs = list(_pairs(results))
    columns = [*NAMES, *KEYS, "label", *compare([], [])]
    if not pairs:
        return pd.DataFrame(columns=columns)
    frame = pd.concat(pairs, ignore_index=True)
    everything = frame.assign(**dict.fromkeys(KEYS))
    rows = []
    for part in (everything, frame):
        keys = [*NAMES, *KEYS, "label"]
        groups: Any = part.groupby(keys, dropna=False, sort=False)
        for group, found in groups:
            facts = {k: None if v != v else v for k, v in zip(keys, group, strict=True)}
            rows.append({**facts, **compare(found["one"].tolist(), found["other"].tolist())})
    return _in_order(pd.DataFrame(rows, columns=columns))


def compare(one: Sequence[bool | None], other: Sequence[bool | None]) -> dict[str, Any]:
    """Agreement of two raters on the same items; None where a rater gave no label.

    agreement: share of items with equal labels, over items that both labelled (n); the rest is
    counted as missing. kappa: (agreement - chance) / (1 - chance), chance from the raters' own
    rates (Cohen 1960); missing where both are constant, since there is nothing to agree on.
    """
    import pandas as pd

    first_known, second_known = pd.Series(one).notna(), pd.Series(other).notna()
    known = [
        (bool(a), bool(b))
        for a, b, given in zip(one, other, first_known & second_known, strict=True)
        if given
    ]
    n = len(known)
    if not n:
        nothing = dict.fromkeys(("agreement", "kappa", "first_rate", "second_rate"))
        return {"n": 0, "missing": len(one), **nothing}
    equal = sum(a == b for a, b in known)
    first, second = (sum(pair[i] for pair in known) for i in (0, 1))
    by_chance = first * second + (n - first) * (n - second)  # of n * n, in whole numbers
    return {
        "n": n,
        "missing": len(one) - n,
        "agreement": equal / n,
        "kappa": (equal * n - by_chance) / (n * n - by_chance) if by_chance < n * n else None,
        "first_rate": first / n,
        "second_rate": second / n,
    }


def _pairs(results: Results) -> Iterator[Any]:
    """Frames of label pairs: NAMES, KEYS, label, one, other."""
    import pandas as pd

    for evaluation in results.plan["evaluations"]:
        policy, target = evaluation["policy"], evaluation["target"]
        path = results.file("audit", policy, target, "labels.parquet")
        if path is None:
            continue
        audit = pd.read_parquet(path)
        facts = evaluation_facts(results, evaluation)
        group = {key: facts[key] for key in KEYS}
        if not bool(audit["refusal_by_detector"].any()):  # else it would be held against itself
            yield _detector_pairs(audit, group)
        for opinion in results.plan["opinions"]:
            other = results.file(opinion_stage(**opinion), policy, target, "labels.parquet")
            if other is not None:
                yield _judge_pairs(audit, pd.read_parquet(other), group)


def _judge_pairs(audit: Any, opinion: Any, group: Mapping[str, Any]) -> Any:
    """Pairs of all six labels. Raises ValueError unless both judged the same completions."""
    import pandas as pd

    both = audit.merge(opinion, on="prompt_id", suffixes=("_one", "_other"))
    if len(both) != len(opinion) or (both["completion_one"] != both["completion_other"]).any():
        raise ValueError("two opinions are not about the same completions; run the grid again")
    retest = int(opinion["replicate"].iloc[0])
    names = {
        **_names(RETEST if retest else JUDGES, audit),
        "second": opinion["judge"].iloc[0],
        "second_prompt": opinion["judge_prompt"].iloc[0],
        "second_entry": opinion["judge_entry"].iloc[0],
        "replicate": retest,
    }
    return pd.concat(
        _frame(names, group, label, both[f"{label}_one"], both[f"{label}_other"]) for label in SIX
    )


def _detector_pairs(audit: Any, group: Mapping[str, Any]) -> Any:
    found = audit["refusal_probability"]
    flagged = (rounded(found) >= DETECTOR_THRESHOLD).astype("boolean").mask(found.isna())
    names = {
        **_names(DETECTOR, audit),
        "second": audit["detector"].iloc[0],
        "second_prompt": None,
        "second_entry": None,
        "replicate": 0,
    }
    return _frame(names, group, "refusal", audit["refusal"], flagged)


def _names(comparison: str, audit: Any) -> dict[str, Any]:
    return {
        "comparison": comparison,
        "first": audit["judge"].iloc[0],
        "first_prompt": audit["judge_prompt"].iloc[0],
        "first_entry": audit["judge_entry"].iloc[0],
    }


def _frame(
    names: Mapping[str, Any], group: Mapping[str, Any], label: str, one: Any, other: Any
) -> Any:
    import pandas as pd

    pair = {"one": one.astype("object"), "other": other.astype("object")}
    frame = pd.DataFrame({"label": label, **pair})
    return frame.assign(**{name: value for name, value in {**names, **group}.items()})


def _in_order(frame: Any) -> Any:
    """All policies first, then base, warm-up, GRPO; labels in their own order."""
    kinds = frame["kind"].map(ORDER).fillna(-1)
    labels = frame["label"].map({name: i for i, name in enumerate(SIX)})
    keyed = frame.assign(_kind=kinds, _label=labels)
    keys = ["comparison", "second_entry", "second", "replicate", "_kind", "size", "init", "reward"]
    return keyed.sort_values(
        [*keys, "_label"], na_position="first", kind="stable", ignore_index=True
    ).drop(columns=["_kind", "_label"])
