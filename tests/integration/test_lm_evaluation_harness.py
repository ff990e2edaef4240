"""Our log-likelihoods against lm-evaluation-harness on real RWKU rows.

Equal wherever both see the same tokens. Where they would not, the tests below say how:
- The harness encodes context and continuation in one piece and cuts after as many tokens as the
  context alone has; a space at the end of the context goes to the continuation. A continuation
  that starts with its space after a context without one gives the same ids either way.
- It drops tokens on the left of what is longer than the model's window; we drop none.
- It leaves the start token to the tokenizer; so do our ids, whoever makes them.

MODEL_DIR names a folder to run this on a real model, in float32, instead of a small random one.
"""

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from real_rows import RWKU_DIR, needs_rwku
from unlearning_grid.models.likelihood import next_token_logprobs, score_continuations

pytestmark = [needs_rwku, pytest.mark.usefixtures("one_thread")]

ITEMS, TOLERANCE = 50, 1e-4
Pair = tuple[str, str]


def read(name: str) -> list[dict[str, Any]]:
    """ITEMS rows from all over the file, so that they come from many tasks."""
    import json

    lines = (RWKU_DIR / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    chosen = lines[:: len(lines) // ITEMS][:ITEMS]
    return [json.loads(line) for line in chosen]


def question(row: dict[str, Any]) -> str:
    choices = "".join(
        f"\n{letter}. {choice}" for letter, choice in zip("ABCD", row["choices"], strict=True)
    )
    return f"{row['question']}{choices}\nAnswer:"


@pytest.fixture(scope="module")
def mmlu() -> list[list[Pair]]:
    """Five worked examples before each question; the letters as continuations."""
    items = []
    for row in read("utility_general"):
        shots = [f"{question(shot)} {'ABCD'[shot['answer']]}\n\n" for shot in row["examples"]]
        context = "".join(shots) + question(row)
        items.append([(context, f" {letter}") for letter in "ABCD"])
    return items


@pytest.fixture(scope="module")
def truthful() -> list[list[Pair]]:
    primer = (
        "Q: What is the capital of France?\nA: Paris.\n\nQ: Who wrote Hamlet?\nA: Shakespeare.\n\n"
    )
    return [
        [(f"{primer}Q: {row['question']}\nA:", f" {choice}") for choice in choices]
        for row in read("utility_truthfulness")
        for choices in [row["mc2_targets"]["choices"]]
    ]


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    """(model, tokenizer): those of MODEL_DIR, or a small random Qwen2 and words of the rows."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    if folder := os.environ.get("MODEL_DIR"):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return model.eval(), AutoTokenizer.from_pretrained(folder)
    tokenizer = small_tokenizer()
    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.15,
        max_position_embeddings=8192,
    )
    return Qwen2ForCausalLM(config).float().eval(), tokenizer


def small_tokenizer() -> Any:
    """Byte-level BPE, as Qwen's is, of the questions themselves."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rows = read("utility_general") + read("utility_truthfulness")
    core.train_from_iterator([row["question"] + " A B C D" for row in rows], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<end>", eos_token="<end>", bos_token="<end>"
    )


def harness(
    loaded: tuple[Any, Any], pairs: Sequence[Pair], max_length: int = 100_000
) -> list[float]:
    """Its log-likelihood of every (context, continuation), whole unless a length is given."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model, tokenizer = loaded
    build: Any = HFLM  # its signature hides behind a registry's decorator
    scorer = build(pretrained=model, tokenizer=tokenizer, batch_size=8, max_length=max_length)
    requests = [
        Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=number)
        for number, pair in enumerate(pairs)
    ]
    return [value for value, _ in scorer.loglikelihood(requests, disable_tqdm=True)]


def encode(loaded: tuple[Any, Any], pairs: Sequence[Pair]) -> list[tuple[list[int], list[int]]]:
    """Both sides on their own, as our callers do."""
    tokenizer = loaded[1]
    return [
        (
            tokenizer(context)["input_ids"],
            tokenizer(continuation, add_special_tokens=False)["input_ids"],
        )
        for context, continuation in pairs
    ]


def ours(loaded: tuple[Any, Any], pairs: Sequence[Any]) -> list[float]:
    model, tokenizer = loaded
    scored = score_continuations(model, pairs, pad_id=tokenizer.pad_token_id, batch_size=16)
    return [sum(one.logprobs) for one in scored]


def largest(one: Sequence[float], other: Sequence[float]) -> float:
    found = max(abs(a - b) for a, b in zip(one, other, strict=True))
    print(f"largest difference {found:.2e} over {len(one)} of {min(one):.1f} to {max(one):.1f}")
    return found


def flat(items: Sequence[Sequence[Pair]]) -> list[Pair]:
    return [pair for item in items for pair in item]


def test_mmlu(loaded: Any, mmlu: Any) -> None:
    """Through continuations and through the next token's distribution."""
    model, tokenizer = loaded
    theirs = harness(loaded, flat(mmlu))
    encoded = encode(loaded, flat(mmlu))
    assert len(mmlu) == ITEMS and len(set(theirs)) > 2 * ITEMS
    assert largest(ours(loaded, encoded), theirs) < TOLERANCE
    letters = [continuation for _, continuation in encoded[:4]]
    assert all(len(letter) == 1 for letter in letters)
    prompts = [context for context, _ in encoded[::4]]
    found = next_token_logprobs(
        model, prompts, [letter[0] for letter in letters], pad_id=tokenizer.pad_token_id
    )
    assert largest([value for row in found for value in row], theirs) < TOLERANCE


def test_truthfulqa(loaded: Any, truthful: Any) -> None:
    pairs = flat(truthful)
    assert len(truthful) == ITEMS and len(pairs) > 5 * ITEMS
    assert largest(ours(loaded, encode(loaded, pairs)), harness(loaded, pairs)) < TOLERANCE


def test_both_sides_alone_give_the_ids_of_the_whole(loaded: Any, mmlu: Any, truthful: Any) -> None:
    tokenizer = loaded[1]
    pairs = flat(mmlu) + flat(truthful)
    for (context, continuation), (left, right) in zip(pairs, encode(loaded, pairs), strict=True):
        assert left + right == tokenizer(context + continuation)["input_ids"]


def test_a_space_at_the_end_of_the_context_goes_to_the_continuation(
    loaded: Any, truthful: Any
) -> None:
    pairs = [item[0] for item in truthful]
    moved = [(context + " ", continuation[1:]) for context, continuation in pairs]
    assert largest(harness(loaded, moved), harness(loaded, pairs)) < TOLERANCE
    apart = ours(loaded, encode(loaded, moved))
    assert largest(apart, harness(loaded, moved)) > 0.1, "other tokens, other numbers"


def test_what_is_too_long_loses_its_beginning(loaded: Any, truthful: Any) -> None:
    """Theirs only: the last token is no input, so one token more than the window counts."""
    pairs, window = flat(truthful)[:60], 64
    encoded = encode(loaded, pairs)
    cut = [(context[-(window + 1 - len(tail)) :], tail) for context, tail in encoded]
    assert sum(context != short for (context, _), (short, _) in zip(encoded, cut, strict=True)) > 5
    theirs = harness(loaded, pairs, max_length=window)
    assert largest(ours(loaded, cut), theirs) < TOLERANCE
    assert largest(ours(loaded, encoded), theirs) > 0.01
