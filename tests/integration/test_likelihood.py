"""Scores and completions of ragged batches against one text at a time, in float32.

The yardstick is a plain forward of one unpadded row and log_softmax over all its logits.
"""

import copy
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from unlearning_grid.models import batches, likelihood
from unlearning_grid.models.likelihood import (
    next_token_logprobs,
    score_continuations,
    study_text_losses,
)
from unlearning_grid.models.sampling import generate

pytestmark = [pytest.mark.usefixtures("one_thread")]

VOCABULARY, PAD = 211, 0
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model() -> Any:
    return made()


def made(**changed: Any) -> Any:
    """A random Qwen2 with weights large enough that what it reads decides what it says."""
    torch.manual_seed(5)
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.15,
        "max_position_embeddings": 512,
    } | changed
    return Qwen2ForCausalLM(Qwen2Config(**settings)).float()


def rows(seed: int, count: int, shortest: int, longest: int) -> list[list[int]]:
    draw = random.Random(seed)
    lengths = [draw.randint(shortest, longest) for _ in range(count)]
    return [[draw.randrange(1, VOCABULARY) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def pairs() -> list[tuple[list[int], list[int]]]:
    """Ragged; contexts of one token, and four contexts with several continuations each."""
    alone = list(zip(rows(1, 20, 1, 40), rows(2, 20, 1, 30), strict=True))
    shared = [(context, c) for context in rows(3, 4, 5, 50) for c in rows(len(context), 5, 1, 12)]
    single = list(zip(rows(4, 6, 1, 1), rows(5, 6, 1, 60), strict=True))
    mixed = alone + shared + single
    random.Random(6).shuffle(mixed)
    return mixed


def spread(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Log-probabilities (positions, vocabulary) of one row alone."""
    model.eval()
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([list(ids)])).logits[0].double(), dim=-1)


def alone(model: Any, pairs: Sequence[Any]) -> list[list[float]]:
    found = []
    for context, continuation in pairs:
        every = spread(model, context + continuation)
        places = range(len(context) - 1, len(context) + len(continuation) - 1)
        found.append([float(every[p, t]) for p, t in zip(places, continuation, strict=True)])
    return found


def distance(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    assert [len(row) for row in one] == [len(row) for row in other]
    flat = [abs(a - b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)]
    print(f"largest difference {max(flat):.2e} over {len(flat)} numbers")
    return max(flat)


def logprobs(scored: Sequence[Any]) -> list[list[float]]:
    return [one.logprobs for one in scored]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("size", [1, 7, 32, None])
def test_continuations_score_as_they_do_alone(
    model: Any, pairs: Any, side: str, size: int | None
) -> None:
    scored = score_continuations(model, pairs, pad_id=PAD, batch_size=size, side=side)
    assert distance(logprobs(scored), alone(model, pairs)) < TOLERANCE
    assert all(one.mean == one.variance == [] for one in scored)


def test_the_order_and_the_padding_token_do_not_matter(model: Any, pairs: Any) -> None:
    scored = score_continuations(model, pairs, pad_id=PAD, batch_size=8)
    order = list(range(len(pairs)))
    random.Random(7).shuffle(order)
    again = score_continuations(model, [pairs[i] for i in order], pad_id=9, batch_size=8)
    assert distance([scored[i].logprobs for i in order], logprobs(again)) < TOLERANCE


@pytest.mark.parametrize("positions", [1, 5])
def test_long_texts_run_in_pieces(
    model: Any, pairs: Any, positions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []
    monkeypatch.setattr(likelihood, "POSITIONS", positions)
    handle = model.lm_head.register_forward_hook(
        lambda module, inputs, output: widths.append(output.shape[1])
    )
    try:
        scored = score_continuations(model, pairs, pad_id=PAD, batch_size=9)
    finally:
        handle.remove()
    assert distance(logprobs(scored), alone(model, pairs)) < TOLERANCE
    assert max(widths) == positions, "no more logits than that at a time"


def test_a_shared_context_is_read_once(model: Any) -> None:
    context = rows(8, 1, 40, 40)[0]
    shared = [(context, continuation) for continuation in rows(9, 6, 3, 3)]
    read: list[tuple[int, int]] = []
    handle = model.model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(tuple(kwargs["input_ids"].shape)),
        with_kwargs=True,
    )
    try:
        scored = score_continuations(model, shared, pad_id=PAD, batch_size=6)
    finally:
        handle.remove()
    assert read == [(1, 39), (6, 3)]
    assert distance(logprobs(scored), alone(model, shared)) < TOLERANCE


def test_attention_with_a_window_sees_the_same_tokens(pairs: Any) -> None:
    """Contexts padded on the left have no gap, so the window reaches equally far back."""
    settings = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    windowed = made(**settings)
    scored = score_continuations(windowed, pairs, pad_id=PAD, batch_size=16)
    assert distance(logprobs(scored), alone(windowed, pairs)) < TOLERANCE
    assert distance(logprobs(scored), alone(made(), pairs)) > 0.1, "the window matters here"


def test_moments_of_the_log_probability(model: Any, pairs: Any) -> None:
    scored = score_continuations(model, pairs, pad_id=PAD, batch_size=8, moments=True)
    mean, variance = [], []
    for context, continuation in pairs:
        every = spread(model, context + continuation)[len(context) - 1 : -1]
        first = (every.exp() * every).sum(-1)
        mean.append(first.tolist())
        variance.append(((every.exp() * every**2).sum(-1) - first**2).tolist())
    assert distance([one.mean for one in scored], mean) < TOLERANCE
    assert distance([one.variance for one in scored], variance) < 10 * TOLERANCE
    assert distance(logprobs(scored), alone(model, pairs)) < TOLERANCE


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("size", [1, 32, None])
def test_next_tokens(model: Any, side: str, size: int | None) -> None:
    prompts, candidates = rows(10, 40, 1, 60), [7, 3, 120, 55]
    found = next_token_logprobs(model, prompts, candidates, pad_id=PAD, batch_size=size, side=side)
    every = [spread(model, prompt)[-1] for prompt in prompts]
    expected = [[float(row[token]) for token in candidates] for row in every]
    assert distance(found, expected) < TOLERANCE


def test_an_adapter_and_the_models_mode(pairs: Any) -> None:
    """A LoRA model with dropout, in training mode as it is during a run."""
    base = made()
    settings = LoraConfig(r=4, lora_dropout=0.5, target_modules=["q_proj", "v_proj"])
    wrapped: Any = get_peft_model(base, settings)
    for name, weights in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.3)
    wrapped.train()
    scored = score_continuations(wrapped, pairs, pad_id=PAD)
    losses = study_text_losses(wrapped, rows(11, 3, 4, 9), pad_id=PAD, rows=2)
    assert wrapped.training
    assert distance(logprobs(scored), alone(wrapped, pairs)) < TOLERANCE
    assert distance([losses], [study(wrapped, rows(11, 3, 4, 9), 2)]) < TOLERANCE
    with wrapped.disable_adapter():
        assert distance(logprobs(scored), alone(wrapped, pairs)) > 0.1, "the adapter counts"


def test_out_of_memory_changes_nothing(
    model: Any, pairs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logprobs(score_continuations(model, pairs, pad_id=PAD, batch_size=4))
    forward = model.forward

    def short(*args: Any, **kwargs: Any) -> Any:
        if kwargs["input_ids"].shape[0] > 5:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", short)
    found = score_continuations(model, pairs, pad_id=PAD, batch_size=16)
    assert distance(logprobs(found), expected) < TOLERANCE


def test_what_is_empty_is_refused(model: Any) -> None:
    for pair in ([], [1]), ([1], []):
        with pytest.raises(ValueError, match="pair 1: empty context or continuation"):
            score_continuations(model, [([1], [2]), pair], pad_id=PAD)
    with pytest.raises(ValueError, match="prompt 1: empty"):
        next_token_logprobs(model, [[1], []], [2], pad_id=PAD)
    with pytest.raises(ValueError, match="text 0: empty"):
        study_text_losses(model, [[]], pad_id=PAD, rows=2)
    assert score_continuations(model, [], pad_id=PAD) == []
    assert next_token_logprobs(model, [], [2], pad_id=PAD) == []
    assert study_text_losses(model, [], pad_id=PAD, rows=2) == []


def study(model: Any, texts: list[list[int]], size: int) -> list[float]:
    """The study's numbers, literally: all logits of a batch as the study forms it."""
    model.eval()
    found: list[float] = []
    for start in range(0, len(texts), size):
        batch = texts[start : start + size]
        width = max(map(len, batch))
        ids = torch.tensor([[PAD] * (width - len(text)) + text for text in batch])
        mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in batch])
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none"
        )
        real = mask[:, 1:]
        found += ((loss * real).sum(1) / real.sum(1)).tolist()
    return found


@pytest.mark.parametrize("room", [1, 3, 64])
def test_the_studys_losses(model: Any, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows run at once."""
    monkeypatch.setattr(likelihood, "rows_that_fit", lambda *args: room)
    texts = rows(12, 11, 2, 40)
    found = study_text_losses(model, texts, pad_id=PAD, rows=4)
    assert distance([found], [study(model, texts, 4)]) < TOLERANCE


def test_padding_adds_to_the_studys_losses_except_in_the_longest_text(model: Any) -> None:
    texts = [text for length in (9, 30, 12, 21, 30) for text in rows(length, 1, length, length)]
    found = study_text_losses(model, texts, pad_id=PAD, rows=3)
    proper = [
        -sum(one.logprobs) / len(one.logprobs)
        for one in score_continuations(model, [(t[:1], t[1:]) for t in texts], pad_id=PAD)
    ]
    longest = [1, 4]
    for place, (study_loss, loss) in enumerate(zip(found, proper, strict=True)):
        if place in longest:
            assert study_loss == pytest.approx(loss, abs=TOLERANCE)
        else:
            # The extra token's own loss, and one more token to divide by.
            extra = study_loss * len(texts[place]) - loss * (len(texts[place]) - 1)
            assert extra > 0.5 and abs(study_loss - loss) > 1e-3
    assert study_text_losses(model, [[7]], pad_id=PAD, rows=3) == [0.0], "nothing to count"
    one_by_one = study_text_losses(model, texts, pad_id=PAD, rows=1)
    assert one_by_one == pytest.approx(proper, abs=TOLERANCE)


def test_a_first_batch_size_for_an_adapter(model: Any) -> None:
    wrapped: Any = get_peft_model(made(), LoraConfig(r=2, target_modules=["q_proj"]))
    assert batches.rows_that_fit(wrapped, 100, 1) == batches.rows_that_fit(model, 100, 1) == 64


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One token per byte; it adds a start token of its own unless told not to."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[: VOCABULARY - 3]
    names = ["<pad>", "<s>", "</s>", *letters]
    core = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, **special)


PROMPTS = [
    "Who?",
    "Where was Bruce Lee born, and when did he leave?",
    "a",
    "In one word: yes or no",
]


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_a_prompt_alone_and_in_a_ragged_batch_is_completed_the_same(
    model: Any, tokenizer: Any, penalty: float
) -> None:
    def complete(prompts: Any, size: int | None) -> list[str]:
        options = {"max_new_tokens": 25, "repetition_penalty": penalty, "batch_size": size}
        return [group[0].text for group in generate(model, tokenizer, prompts, **options)]

    assert tokenizer("a")["input_ids"][0] == 1, "a start token if asked"
    texts = complete(PROMPTS, 32)
    assert texts == complete(PROMPTS, None) == [complete([p], 1)[0] for p in PROMPTS]
    ids = [tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in PROMPTS]
    assert texts == complete(ids, 32)
    assert texts != complete([[1, *row] for row in ids], 32), "ids are used as they are"


def greedy(model: Any, ids: list[int], penalty: float, count: int) -> list[int]:
    """Greedy decoding, literally: the penalty is on whatever stands before."""
    made: list[int] = []
    for _ in range(count):
        with torch.no_grad():
            logits = model(torch.tensor([ids + made])).logits[0, -1]
        for token in set(ids + made):
            logits[token] = logits[token] * (penalty if logits[token] < 0 else 1 / penalty)
        made.append(int(logits.argmax()))
        if made[-1] == 2:
            break
    return made


def test_the_repetition_penalty_is_on_prompt_and_completion(model: Any, tokenizer: Any) -> None:
    changed = 0
    for prompt in PROMPTS:
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        texts = []
        for penalty in (1.0, 1.3):
            options = {"max_new_tokens": 12, "repetition_penalty": penalty}
            found = generate(model, tokenizer, [ids], **options)[0][0].text
            made = greedy(model, ids, penalty, 12)
            assert found == tokenizer.decode(made, skip_special_tokens=True)
            texts.append(found)
        changed += texts[0] != texts[1]
    assert changed


def test_padding_is_not_a_repetition(model: Any, tokenizer: Any) -> None:
    """A padding token that the model is about to say: penalised, it would lose."""
    short = tokenizer("Who?", add_special_tokens=False)["input_ids"]
    first = greedy(model, short, 1.0, 1)[0]
    long = [token for token in short * 9 if token != first]
    other = copy.deepcopy(tokenizer)
    other.pad_token = other.convert_ids_to_tokens(first)
    assert other.pad_token_id == first
    options = {"max_new_tokens": 1, "repetition_penalty": 50.0}
    done = generate(model, other, [short, long], **options)
    assert done[0][0].text == tokenizer.decode([greedy(model, short, 50.0, 1)[0]])
    assert greedy(model, short, 50.0, 1) == [first] != greedy(model, [first, *short], 50.0, 1)


def test_out_of_memory_in_the_middle_of_a_generation(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = generate(model, tokenizer, PROMPTS, max_new_tokens=6)
    real = model.generate
    sizes: list[int] = []

    def short(**arguments: Any) -> Any:
        sizes.append(len(arguments["input_ids"]))
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(**arguments)

    monkeypatch.setattr(model, "generate", short)
    assert generate(model, tokenizer, PROMPTS, max_new_tokens=6) == expected
    assert sizes == [4, 2, 2]
    lengths = [len(tokenizer(p, add_special_tokens=False)["input_ids"]) for p in PROMPTS]
    assert lengths != sorted(lengths, reverse=True), "the order of the prompts is another"
