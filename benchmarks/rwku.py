"""RWKU's scores against the public packages that give the same numbers, in one run.

    RWKU_DIR=folder PYTHONPATH=workflow/scripts .venv/bin/python benchmarks/rwku.py [rounds] [model]

Scores ROUGE-L recall of every forget and neighbor probe, n-gram entropy, and token F1 of every
TriviaQA row, on real answers and texts. The study uses `rouge` with its default three metrics and
NLTK's word_tokenize, ngrams and FreqDist; token F1 stands against torchmetrics' SQuAD. Checks that
the values are equal, and prints rows per second, the best of the rounds, with the machine.

With a model folder, two more lines: log-probabilities of the choices of ten TruthfulQA questions,
and of ten membership texts, batched against one plain forward pass per row, one round.
"""

import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unlearning_grid.data.rwku import read_jsonl
from unlearning_grid.rwku import fluency, rouge, text

PROBES = ["forget_level1", "forget_level2", "forget_level3", "neighbor_level1", "neighbor_level2"]
WORDS = 22  # of an output of 30 tokens
Values = list[float]
Pairs = list[tuple[str, str]]


def read(name: str) -> list[dict]:
    return list(read_jsonl(Path(os.environ["RWKU_DIR"]) / f"{name}.jsonl"))


def probes() -> dict[str, Pairs]:
    """(answer, output): the answer alone, in its sentence, before a text of full length; a text."""
    rows = [row for name in PROBES for row in read(name)]
    texts = [row["text"].split()[:WORDS] for row in read("train_original_passage")]
    answers = [row["answer"] for row in rows]
    sentences = [row["query"].replace("___", row["answer"]) for row in rows]
    long = [
        " ".join([*answer.split(), *texts[number % len(texts)]][:WORDS])
        for number, answer in enumerate(answers)
    ]
    other = [" ".join(texts[number % len(texts)]) for number in range(len(answers))]
    outputs = {"answer": answers, "sentence": sentences, "answer and text": long, "text": other}
    return {kind: list(zip(answers, found, strict=True)) for kind, found in outputs.items()}


def compare(
    name: str,
    rows: int,
    rounds: int,
    ours: Callable[[], Values],
    theirs: Callable[[], Values] | None,
    tolerance: float = 1e-9,
) -> Values:
    """Print one line of the table; best of the rounds on both sides, taken by turns."""
    best = [math.inf, math.inf]
    values: Values = ours()
    for _ in range(rounds):
        for side, run in enumerate((ours, theirs)):
            if run is not None:
                start = time.perf_counter()
                found = run()
                best[side] = min(best[side], time.perf_counter() - start)
                pairs = zip(values, found, strict=True)
                assert all(math.isclose(*pair, rel_tol=tolerance) for pair in pairs), name
    speeds = [rows / seconds for seconds in best]
    ratio = f"{speeds[0] / speeds[1]:6.1f}" if theirs else "     -"
    shown = f"{speeds[1]:10,.0f}" if theirs else "         -"
    print(f"{name:34} {rows:5} {speeds[0]:10,.0f} {shown} {ratio}")
    return values


def rouge_rows(rounds: int) -> None:
    from rouge import Rouge
    from rouge_score.rouge_scorer import RougeScorer

    class Words:
        def tokenize(self, given: str) -> list[str]:
            return text.words(given)

    package, scorer = Rouge(), RougeScorer(["rougeL"], tokenizer=Words())

    def of_package(answer: str, output: str) -> float:  # row by row, as the study does
        scores: Any = package.get_scores(hyps=[output], refs=[answer])
        return scores[0]["rouge-l"]["r"]

    kinds = probes()
    for kind, pairs in {**kinds, "all": [pair for some in kinds.values() for pair in some]}.items():
        compare(
            f"rouge, study: {kind}",
            len(pairs),
            rounds,
            lambda pairs=pairs: [float(rouge.study_recall(*pair) or 0) for pair in pairs],
            lambda pairs=pairs: [of_package(*pair) for pair in pairs],
        )
        compare(
            f"rouge, corrected: {kind}",
            len(pairs),
            rounds,
            lambda pairs=pairs: [rouge.recall(*pair) for pair in pairs],
            lambda pairs=pairs: [scorer.score(*pair)["rougeL"].recall for pair in pairs],
        )


def entropy_rows(rounds: int) -> None:
    from nltk import FreqDist, ngrams

    def usual(given: str) -> float:
        tokens, bits = fluency.word_tokens(given), []
        for n in (2, 3):
            counts = FreqDist(ngrams(tokens, n))
            bits.append(-sum(counts.freq(g) * math.log2(counts.freq(g)) for g in counts))
        return (2 / 3 * bits[0] + 4 / 3 * bits[1]) / 2

    def per_text(texts: Sequence[str], score: Callable[[str], float]) -> Callable[[], Values]:
        return lambda: [score(given) for given in texts]

    texts = sorted({row["text"] for row in read("mia_forget")})
    tokens = {given: fluency.word_tokens(given) for given in texts}
    words = sum(map(len, tokens.values())) / len(texts)
    name = f"entropy: {words:.0f} tokens"
    compare(name, len(texts), rounds, per_text(texts, fluency.entropy), per_text(texts, usual))
    # the same without the tokenizer, which is NLTK's on both sides
    real, fluency.word_tokens = fluency.word_tokens, tokens.__getitem__
    try:
        both = (per_text(texts, fluency.entropy), per_text(texts, usual))
        compare("entropy, tokens given", len(texts), rounds, *both)
    finally:
        fluency.word_tokens = real


def f1_rows(rounds: int) -> None:
    from torchmetrics.functional.text import squad

    rows = read("utility_factuality")
    pairs = [(f"It is {row['answers'][-1]}.", row["answers"]) for row in rows]
    said = [{"prediction_text": output, "id": str(n)} for n, (output, _) in enumerate(pairs)]
    gold = [
        {"answers": {"answer_start": [0] * len(answers), "text": answers}, "id": str(n)}
        for n, (_, answers) in enumerate(pairs)
    ]

    def mean() -> Values:
        found = [text.study_f1(*pair) for pair in pairs]
        return [round(sum(found) / len(found), 6)]

    # torchmetrics gives exact match, too, and the mean of all rows, in single precision
    compare(
        "F1, study",
        len(rows),
        rounds,
        mean,
        lambda: [round(float(squad(said, gold)["f1"].double()) / 100, 6)],
    )
    compare("F1, corrected", len(rows), rounds, lambda: [text.f1(*pair) for pair in pairs], None)


def likelihood_rows(folder: str) -> None:
    import torch

    from unlearning_grid.config import ROOT, load_yaml
    from unlearning_grid.models.likelihood import score_continuations
    from unlearning_grid.models.load import load_model, load_tokenizer
    from unlearning_grid.rwku.prompts import Renderer

    where = {"location": folder, "revision": None, "dtype": "float32"}
    model, tokenizer = load_model(where), load_tokenizer(where)
    wording = load_yaml(ROOT / "config" / "prompts" / "reworded-v1" / "rwku.yaml")
    rows = Renderer(tokenizer, wording).rows(Path(os.environ["RWKU_DIR"]), "utility_truthfulness")
    asked = [next(rows) for _ in range(10)]
    choices = [(row["ids"], ids) for row in asked for ids in row["choice_ids"]]
    texts = [tokenizer(row["text"])["input_ids"] for row in read("mia_forget")[:10]]

    @torch.inference_mode()
    def alone(context: list[int], continuation: list[int]) -> float:
        ids = torch.tensor([context + continuation])
        logprobs = model(input_ids=ids).logits[0, len(context) - 1 : -1].log_softmax(-1)
        found = logprobs.gather(-1, torch.tensor(continuation)[:, None]).sum()
        return float(found)

    def batched(pairs: Any) -> Values:
        found = score_continuations(model, pairs, pad_id=tokenizer.pad_token_id)
        return [sum(one.logprobs) for one in found]

    for name, pairs in {"choices": choices, "texts": [(t[:1], t[1:]) for t in texts]}.items():
        both = (lambda p=pairs: batched(p), lambda p=pairs: [alone(*pair) for pair in p])
        compare(f"log-probabilities: {name}", len(pairs), 1, *both, tolerance=1e-4)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{'rows per second':34} {'rows':>5} {'ours':>10} {'package':>10} {'ratio':>6}")
    rouge_rows(rounds)
    entropy_rows(rounds)
    f1_rows(rounds)
    if len(sys.argv) > 2:
        likelihood_rows(sys.argv[2])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{platform.machine()}, {cores} cores, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
