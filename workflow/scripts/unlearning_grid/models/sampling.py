"""Completions by transformers, with every sampling parameter stated.

What is left out of a generation config is taken from the model's own; models.load empties that,
and every parameter that decides is stated here all the same.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Completion:
    """One completion. `tokens` counts the generated ones, with the end token if there is one."""

    text: str
    tokens: int
    finish_reason: str  # "stop" after an end token, "length" at the token limit


def end_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token id that ends a turn: the model's and the tokenizer's."""
    own = model.generation_config.eos_token_id
    ids = set(own if isinstance(own, list) else [own]) | {tokenizer.eos_token_id}
    return sorted(token for token in ids if token is not None)


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    num_samples: int = 1,
    seed: int = 0,
    batch_size: int = 64,
) -> list[list[Completion]]:
    """Complete rendered prompts; temperature 0 is greedy.

    Returns one list of `num_samples` completions per prompt, in the order of the prompts. Prompts
    run in batches of similar length. The random state outside is left as it was, and so are the
    model's mode and its own generation config.
    """
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), i))
    found: dict[int, list[Completion]] = {}
    config = _config(model, tokenizer, max_new_tokens, temperature, top_p, num_samples)
    began = last = time.monotonic()
    with _evaluating(model, seed):
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            groups = _batch(model, tokenizer, [prompts[i] for i in batch], config)
            found.update(zip(batch, groups, strict=True))
            if time.monotonic() - last > 30:
                last = time.monotonic()
                rate = len(found) / (last - began)
                left = (len(prompts) - len(found)) / rate
                log.info("%d of %d prompts, %.0f s left", len(found), len(prompts), left)
    return [found[i] for i in range(len(prompts))]


def _config(
    model: Any,
    tokenizer: Any,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    num_samples: int,
) -> Any:
    from transformers import GenerationConfig

    sampled = temperature > 0
    return GenerationConfig(
        do_sample=sampled,
        temperature=temperature if sampled else 1.0,
        top_p=top_p,
        top_k=0,
        repetition_penalty=1.0,
        max_new_tokens=max_new_tokens,
        num_return_sequences=num_samples,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=end_ids(model, tokenizer),
    )


def _batch(model: Any, tokenizer: Any, prompts: list[str], config: Any) -> list[list[Completion]]:
    import torch

    encoded = tokenizer(
        prompts,
        return_tensors="pt",
        padding=True,
        padding_side="left",
        add_special_tokens=False,
        return_token_type_ids=False,
    ).to(model.device)
    with torch.inference_mode():
        output = model.generate(**encoded, generation_config=config)
    new = output[:, encoded["input_ids"].shape[1] :].tolist()
    ends = set(config.eos_token_id)
    done = [_completion(tokenizer, ids, ends) for ids in new]
    size = config.num_return_sequences
    return [done[i : i + size] for i in range(0, len(done), size)]


def _completion(tokenizer: Any, ids: list[int], ends: set[int]) -> Completion:
    stop = next((place for place, token in enumerate(ids) if token in ends), None)
    kept = ids if stop is None else ids[: stop + 1]
    text = tokenizer.decode(kept, skip_special_tokens=True)
    return Completion(text, len(kept), "length" if stop is None else "stop")


@contextmanager
def _evaluating(model: Any, seed: int) -> Iterator[None]:
    """Evaluation mode and an own random state, both undone afterwards."""
    import torch

    training = model.training
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        model.eval()
        try:
            yield
        finally:
            model.train(training)
