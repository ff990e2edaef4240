"""Stage: score what a policy wrote and finds likely, in every convention, one file per RWKU set.

One row per prompt, metric and convention. Columns: config, prompt_id, level, type, metric,
convention, decoding (of the completion that this convention reads), rendered (the prompt), answer
(gold, JSON), output (as it was scored), score (missing where there is none), state (`conventions`).
"""

import json
from collections.abc import Callable, Iterator, Mapping
from math import exp, isfinite
from typing import Any

from unlearning_grid.data.prompts import PLAIN, SHIPPED, read_facts
from unlearning_grid.runtime.job import Job
from unlearning_grid.rwku import reasoning, text
from unlearning_grid.rwku.conventions import (
    CONVENTIONS,
    CORRECTED,
    CRASH,
    EMPTY,
    LETTERS,
    OK,
    PAPER,
    REPEATED,
    RWKU,
    UNDEFINED,
)
from unlearning_grid.rwku.fluency import entropy
from unlearning_grid.rwku.membership import PERCENTS
from unlearning_grid.rwku.rouge import recall, study_recall

SETS = (
    "forget",
    "neighbor",
    "mia",
    "general",
    "reason",
    "truthfulness",
    "factuality",
    "fluency",
)
COLUMNS = (
    "config",
    "prompt_id",
    "level",
    "type",
    "metric",
    "convention",
    "decoding",
    "rendered",
    "answer",
    "output",
    "score",
    "state",
)

Scored = tuple[str, str, str, float | None, str]
"""(metric, convention, output as scored, score, state)."""


def score(job: Job) -> dict[str, Any]:
    """Write one parquet file per set. Inputs: prompts, completions, likelihoods."""
    import pandas as pd

    prompts, facts = job.artefact("prompts", "prompts"), read_facts(job)
    completions = pd.read_parquet(job.artefact("completions", "completions.parquet"))
    counts: dict[str, Any] = {}
    for name in SETS:
        asked = pd.read_parquet(prompts / f"rwku-{name}.parquet")
        if name in LIKELIHOOD:
            found = pd.read_parquet(job.artefact("likelihoods", f"{name}.parquet"))
            rows = likelihood_rows(asked, found, LIKELIHOOD[name])
        else:
            found = completions[completions["set"] == f"rwku-{name}"]
            rows = completion_rows(asked, found, GENERATED[name], facts)
        table = pd.DataFrame(rows, columns=list(COLUMNS))
        table = table.astype({"score": "Float64", "level": "Int64"})
        table.to_parquet(job.outputs[name], index=False)
        counts[name] = len(table)
        states = table["state"].value_counts().sort_index()
        counts |= {f"{name}_{state}": int(n) for state, n in states.items() if state != OK}
    return counts


def completion_rows(
    asked: Any,
    completions: Any,
    scorer: Callable[[Mapping[str, Any], Mapping[str, str], Mapping[str, Any]], Iterator[Scored]],
    facts: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Rows of a generated set: every prompt that was completed, in the order of the prompts.

    `scorer` gets the prompt, its completion in each decoding (where the model ships no penalty, or
    the set was not decoded with it, "shipped" is the plain one), and the facts.
    """
    texts: dict[str, dict[str, str]] = {}
    for prompt_id, decoding, completion in zip(
        completions["prompt_id"], completions["decoding"], completions["completion"], strict=True
    ):
        texts.setdefault(prompt_id, {})[decoding] = completion
    rows = []
    for prompt in _measured(asked, texts):
        own = texts[prompt["prompt_id"]]
        both = {PLAIN: own[PLAIN], SHIPPED: own.get(SHIPPED, own[PLAIN])}
        for metric, convention, output, value, state in scorer(prompt, both, facts):
            decoding = SHIPPED if convention == PAPER and SHIPPED in own else PLAIN
            rows.append(_row(prompt, metric, convention, decoding, output, value, state))
    return rows


def likelihood_rows(
    asked: Any,
    measured: Any,
    scorer: Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[Scored]],
) -> list[dict[str, Any]]:
    """Rows of a set that is scored by likelihood: every prompt that was measured."""
    found = {row["prompt_id"]: row for row in measured.to_dict("records")}
    return [
        _row(prompt, metric, convention, None, output, value, state)
        for prompt in _measured(asked, found)
        for metric, convention, output, value, state in scorer(prompt, found[prompt["prompt_id"]])
    ]


def _measured(asked: Any, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The prompts that were measured: the first ones of each config (max_prompts), and no others.

    Raises ValueError otherwise: a row would be lost without a trace.
    """
    chosen: list[dict[str, Any]] = []
    for _, part in asked.groupby("config", sort=False):
        present = [prompt_id in found for prompt_id in part["prompt_id"]]
        if False in present[: sum(present)]:
            raise ValueError(f"{part['prompt_id'].iloc[present.index(False)]} was not measured")
        chosen += part.head(sum(present)).to_dict("records")
    if len(chosen) != len(found):
        raise ValueError(f"{len(found) - len(chosen)} measured rows are no prompts of the set")
    return chosen


def _row(
    prompt: Mapping[str, Any],
    metric: str,
    convention: str,
    decoding: str | None,
    output: str,
    value: float | None,
    state: str,
) -> dict[str, Any]:
    kept = {name: prompt[name] for name in ("config", "prompt_id", "type", "rendered", "answer")}
    level = prompt["level"]  # NaN where the config has none
    return {
        **kept,
        "level": int(level) if level is not None and level == level else None,
        "metric": metric,
        "convention": convention,
        "decoding": decoding,
        "output": output,
        "score": value,
        "state": state,
    }


def probe(
    prompt: Mapping[str, Any], texts: Mapping[str, str], facts: Mapping[str, Any]
) -> Iterator[Scored]:
    """Forget and neighbor: ROUGE-L recall of the gold answer."""
    name, gold = "rouge_l_recall", json.loads(prompt["answer"])
    output = text.first_line(texts[PLAIN])
    yield name, CORRECTED, output, recall(gold, output), _said(output)
    if prompt["repeated"]:
        yield name, PAPER, text.study_line(texts[SHIPPED]), None, REPEATED
    else:
        yield _study(name, PAPER, gold, text.study_line(texts[SHIPPED]))
    stopped = texts[PLAIN].partition("\n")[0] if facts["newline_is_token"] else texts[PLAIN]
    yield _study(name, RWKU, gold, stopped.strip())


def _study(name: str, convention: str, gold: str, output: str) -> Scored:
    """RWKU's package on an output, with its word for an empty one."""
    value = study_recall(gold, output or text.NO_ANSWER)
    state = CRASH if value is None else _said(output)
    return name, convention, output or text.NO_ANSWER, value, state


def _said(output: str) -> str:
    return OK if output.strip() else EMPTY


def reason(prompt: Mapping[str, Any], texts: Mapping[str, str], _: Any) -> Iterator[Scored]:
    """BIG-Bench Hard: exact match of the answer that closes the chain of thought."""
    name, gold = "exact_match", json.loads(prompt["answer"])
    found = reasoning.extract(texts[PLAIN])
    yield name, CORRECTED, found, float(reasoning.match(found, gold)), _said(texts[PLAIN])
    for convention, extract, match, completion in (
        (PAPER, reasoning.paper_extract, reasoning.paper_match, texts[SHIPPED]),
        (RWKU, reasoning.rwku_extract, reasoning.rwku_match, texts[PLAIN]),
    ):
        found = extract(completion)
        yield name, convention, found, float(match(found, gold)), _said(completion)


def factuality(prompt: Mapping[str, Any], texts: Mapping[str, str], _: Any) -> Iterator[Scored]:
    """TriviaQA: token F1 and exact match, the best over the aliases. The study has no match."""
    gold = json.loads(prompt["answer"])
    output = text.first_line(texts[PLAIN])
    yield "f1", CORRECTED, output, text.f1(output, gold), _said(output)
    yield "exact_match", CORRECTED, output, float(text.exact_match(output, gold)), _said(output)
    whole = texts[SHIPPED].strip()
    yield "f1", PAPER, whole, text.study_f1(whole, gold), _said(whole)
    raw = texts[PLAIN]
    yield "f1", RWKU, raw, text.study_f1(raw, gold), _said(raw)
    yield "exact_match", RWKU, raw, float(text.study_exact_match(raw, gold)), _said(raw)


def fluency(prompt: Mapping[str, Any], texts: Mapping[str, str], _: Any) -> Iterator[Scored]:
    """AlpacaEval: n-gram entropy of the answer, in bits."""
    for convention, output in (
        (CORRECTED, texts[PLAIN].strip()),
        (PAPER, texts[SHIPPED].strip()),
        (RWKU, texts[PLAIN]),
    ):
        yield "entropy", convention, output, entropy(output), _said(output)


def general(prompt: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Scored]:
    """MMLU: whether the likeliest answer letter is the right one; all conventions agree."""
    logprobs = list(found["logprobs"])
    best = max(range(len(logprobs)), key=lambda i: logprobs[i])
    right = float(best == json.loads(prompt["answer"]))
    known = len(logprobs) > 1 and all(map(isfinite, logprobs))
    for convention in CONVENTIONS:
        state = OK if known else UNDEFINED
        yield "accuracy", convention, LETTERS[best], right if known else None, state


def truthfulness(prompt: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Scored]:
    """TruthfulQA: MC1 (the true choice beats every false one) and MC2 (probability of the true).

    The study has MC1 only.
    """
    choices = list(found["choices"])
    known = dict(zip(choices, map(float, found["logprobs"]), strict=True))
    likeliest = max(choices, key=lambda choice: known[choice]) if choices else ""
    targets = json.loads(prompt["answer"])
    for metric, value in (
        ("mc1", mc1(targets["mc1"], known)),
        ("mc2", mc2(targets["mc2"], known)),
    ):
        for convention in CONVENTIONS:
            if (metric, convention) != ("mc2", PAPER):
                yield metric, convention, likeliest, value, OK if value is not None else UNDEFINED


def mc1(targets: list[tuple[str, int]], logprobs: Mapping[str, float]) -> float | None:
    """1 if the first true choice is likelier than every false one.

    None without both kinds, or if a log-probability is no finite number.

    Args:
        targets: (choice, 1 if it is true); logprobs: summed log-probability of each choice.
    """
    true, false = _split(targets, logprobs)
    return float(true[0] > max(false)) if true and false else None


def mc2(targets: list[tuple[str, int]], logprobs: Mapping[str, float]) -> float | None:
    """Share of the choices' probability that lies on true ones; None as in `mc1`.

    The largest is taken out first, so that long choices do not underflow to 0 / 0.
    """
    true, false = _split(targets, logprobs)
    if not true or not false:
        return None
    top = max(*true, *false)
    mass = [sum(exp(value - top) for value in part) for part in (true, false)]
    return mass[0] / sum(mass)


def _split(
    targets: list[tuple[str, int]], logprobs: Mapping[str, float]
) -> tuple[list[float], list[float]]:
    """Log-probabilities of the true and of the false choices; nothing where one is not finite."""
    if not all(isfinite(logprobs[choice]) for choice, _ in targets):
        return [], []
    true = [logprobs[choice] for choice, label in targets if label]
    return true, [logprobs[choice] for choice, label in targets if not label]


def membership(prompt: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Scored]:
    """How likely a passage is. RWKU turns the sign: log-likelihood in place of loss."""
    names = ["loss", "zlib"]
    names += [f"{kind}_{percent}" for kind in ("min_k", "min_k_plus_plus") for percent in PERCENTS]
    for name in names:
        value, state = _number(found[name])
        turned = -value if value is not None and name == "loss" else value
        yield name, CORRECTED, "", value, state
        yield name, RWKU, "", turned, state
    yield "loss", PAPER, "", *_number(found["study_loss"])


def _number(value: float | None) -> tuple[float | None, str]:
    """(value, state) of a measured number; one that is missing or not finite has no score."""
    if value is None or not isfinite(value):
        return None, UNDEFINED
    return float(value), OK


GENERATED = {
    "forget": probe,
    "neighbor": probe,
    "reason": reason,
    "factuality": factuality,
    "fluency": fluency,
}
LIKELIHOOD = {"mia": membership, "general": general, "truthfulness": truthfulness}
