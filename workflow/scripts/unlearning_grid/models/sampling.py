"""Completions by transformers, with every sampling parameter stated.

What is left out of a generation config is taken from the model's own; models.load empties that,
and every parameter that decides is stated here all the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearning_grid.models.batches import evaluating, in_batches, padded, rows_that_fit
from unlearning_grid.models.streams import OwnStreams
from unlearning_grid.spec.hub import cannot_load


@dataclass(frozen=True)
class Completion:
    """One completion. `tokens` counts the generated ones, with the end token if there is one."""

    text: str
    tokens: int
    finish_reason: str  # "stop" after an end token, "length" at the token limit


def end_ids(config: Any, tokenizer: Any) -> list[int]:
    """Every token id that ends a turn: the model's (by its generation config), the tokenizer's."""
    own = config.eos_token_id
    ids = set(own if isinstance(own, list) else [own]) | {tokenizer.eos_token_id}
    return sorted(token for token in ids if token is not None)


def shipped_config(where: Mapping[str, Any]) -> Any:
    """The generation config that a model ships, or the one that transformers makes up without it.

    Args:
        where: what models.load.locate gives: "location" (folder or repo) and "revision".
    Raises UserError when the file is there and cannot be read, or the repo or revision is not.
    """
    from transformers import AutoConfig, GenerationConfig

    location, revision = where["location"], where.get("revision")
    try:
        return _shipped(where) or GenerationConfig.from_model_config(
            AutoConfig.from_pretrained(location, revision=revision)
        )
    except (OSError, ValueError) as error:
        raise cannot_load("models: generation config of", location, revision, error) from error


def shipped_repetition_penalty(where: Mapping[str, Any]) -> float:
    """The repetition penalty in a model's shipped generation config; 1.0 (none) without one.

    Arguments and errors as in `shipped_config`.
    """
    try:
        shipped = _shipped(where)
    except (OSError, ValueError) as error:
        location, revision = where["location"], where.get("revision")
        raise cannot_load("models: generation config of", location, revision, error) from error
    return float((shipped and shipped.repetition_penalty) or 1.0)


def _shipped(where: Mapping[str, Any]) -> Any | None:
    """The generation config in the model's files, if there is one."""
    from transformers import GenerationConfig
    from transformers.utils.hub import cached_file

    file = cached_file(
        where["location"],
        "generation_config.json",
        revision=where.get("revision"),
        _raise_exceptions_for_missing_entries=False,
    )
    return None if file is None else GenerationConfig.from_pretrained(str(Path(file).parent))


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    num_samples: int = 1,
    seed: int = 0,
    batch_size: int | None = 64,
    repetition_penalty: float = 1.0,
    seeds: Sequence[int] | None = None,
    done: Callable[[list[int], list[list[Completion]]], None] | None = None,
) -> list[list[Completion]]:
    """Complete rendered prompts, texts or token ids; temperature 0 is greedy.

    Returns one list of `num_samples` completions per prompt, in the order of the prompts. Texts are
    encoded without special tokens, ids are used as they are. Prompts run in batches of similar
    length, longest first: memory that does not suffice shows at once (models.batches halves the
    batch and goes on), and estimates of the time left are too long rather than too short. The
    random state outside is left as it was, and so are the model's mode and its own generation
    config.

    Args:
        batch_size: prompts at a time; None takes what fits into memory. What is sampled (not what
            is greedy) depends on it, unless `seeds` are given.
        repetition_penalty: divides positive and multiplies negative logits of every token that
            stands in the prompt or the completion so far (Keskar et al. 2019); 1.0 is none.
        seeds: one per prompt, each the start of a random stream of its own (models.streams), so
            that a sample depends on no batch and no order; for num_samples 1 at temperature > 0.
        done: is called after each batch with the places of its prompts and their completions.
    Raises ValueError for an empty prompt, and for seeds that do not fit.
    """
    if not prompts:
        return []
    if seeds is not None and (temperature <= 0 or num_samples != 1 or len(seeds) != len(prompts)):
        raise ValueError("seeds: one per prompt, for single samples at a temperature above 0")
    encoded = _encoded(tokenizer, prompts)
    order = sorted(range(len(encoded)), key=lambda i: (-len(encoded[i]), i))
    by_library = 0.0 if seeds is not None else temperature
    config = _config(model, tokenizer, max_new_tokens, by_library, top_p, num_samples)
    config.repetition_penalty = repetition_penalty
    if batch_size is None:
        # Sampling copies the last position's logits a few times, in double precision with streams.
        copies = 4 if seeds is None else 10
        rows = rows_that_fit(model, len(encoded[order[0]]) + max_new_tokens, copies)
        batch_size = max(1, rows // num_samples)
    found: dict[int, list[Completion]] = {}

    def run(batch: list[int]) -> None:
        own = [OwnStreams([seeds[i] for i in batch], temperature, top_p)] if seeds else []
        groups = _batch(model, tokenizer, [encoded[i] for i in batch], config, own)
        found.update(zip(batch, groups, strict=True))
        if done:
            done(batch, groups)

    with _own_random_state(model, seed), evaluating(model):
        in_batches(order, batch_size, run, "prompts")
    return [found[i] for i in range(len(encoded))]


def _encoded(tokenizer: Any, prompts: Sequence[Any]) -> list[list[int]]:
    encoded = [
        tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if isinstance(prompt, str)
        else list(prompt)
        for prompt in prompts
    ]
    if not all(encoded):
        raise ValueError(f"prompt {encoded.index([])}: empty")
    return encoded


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
        eos_token_id=end_ids(model.generation_config, tokenizer),
    )


def _batch(
    model: Any, tokenizer: Any, prompts: list[list[int]], config: Any, processors: list[Any]
) -> list[Any]:
    # Padded with a token that each row has: a repetition penalty sees padding, too, and would
    # punish a padding token (an end token, often) in the padded rows only.
    ids, mask = padded(prompts, None, "left", model.device)
    output = model.generate(
        input_ids=ids, attention_mask=mask, generation_config=config, logits_processor=processors
    )
    new = output[:, ids.shape[1] :].tolist()
    ends = set(config.eos_token_id)
    made = [completion_of(tokenizer, ids, ends) for ids in new]
    size = config.num_return_sequences
    return [made[i : i + size] for i in range(0, len(made), size)]


def completion_of(tokenizer: Any, ids: Sequence[int], ends: set[int]) -> Completion:
    """Generated token ids, cut after the first end token, as a completion."""
    stop = next((place for place, token in enumerate(ids) if token in ends), None)
    kept = list(ids if stop is None else ids[: stop + 1])
    text = tokenizer.decode(kept, skip_special_tokens=True)
    return Completion(text, len(kept), "length" if stop is None else "stop")


@contextmanager
def _own_random_state(model: Any, seed: int) -> Iterator[None]:
    import torch

    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
