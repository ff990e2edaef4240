"""Log-probabilities of given tokens: continuations, next tokens, and the study's text losses.

Scores are in nats, from logits in float32, and of real tokens only: batch size, order and padding
do not change them beyond rounding. `study_text_losses` is the exception, on purpose.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from unlearning_grid.models.batches import evaluating, in_batches, padded, rows_that_fit

POSITIONS = 512  # of a batch at a time: what bounds the logits of long texts

Ids = Sequence[int]


@dataclass(frozen=True)
class Scored:
    """The tokens of one continuation; `mean` and `variance` are empty unless asked for.

    Attributes:
        logprobs: log p(token | all before it), nats.
        mean, variance: moments of log p over the vocabulary under the model's own distribution at
            each position, as Min-K++ needs them (Zhang et al. 2024, arXiv 2404.02936).
    """

    logprobs: list[float]
    mean: list[float]
    variance: list[float]


def score_continuations(
    model: Any,
    pairs: Sequence[tuple[Ids, Ids]],
    *,
    pad_id: int,
    batch_size: int | None = None,
    side: str = "left",
    moments: bool = False,
) -> list[Scored]:
    """Scores of the continuation's tokens of every (context ids, continuation ids).

    What several contexts of a batch share up to their last token is run once and its cache is
    reused. Logits are computed for continuations only, POSITIONS at a time.

    Args:
        batch_size: pairs at a time; None takes what fits into memory.
        side: where contexts are padded. "right" leaves a gap before the continuation, which masks
            hide except from models whose attention has a window.
    Raises ValueError for an empty context or continuation.
    """
    for number, (context, continuation) in enumerate(pairs):
        if not context or not continuation:
            raise ValueError(f"pair {number}: empty context or continuation")
    if not pairs:
        return []
    order = _longest_first(pairs)
    if batch_size is None:
        tokens = max(len(context) + len(continuation) for context, continuation in pairs)
        kept = min(POSITIONS, max(len(continuation) for _, continuation in pairs))
        batch_size = rows_that_fit(model, tokens, kept)
    found: dict[int, Scored] = {}

    def run(batch: list[int]) -> None:
        scored = _continuations(model, [pairs[i] for i in batch], pad_id, side, moments)
        found.update(zip(batch, scored, strict=True))

    with evaluating(model):
        in_batches(order, batch_size, run, "continuations")
    return [found[i] for i in range(len(pairs))]


def next_token_logprobs(
    model: Any,
    prompts: Sequence[Ids],
    candidates: Ids,
    *,
    pad_id: int,
    batch_size: int | None = None,
    side: str = "left",
) -> list[list[float]]:
    """Log-probability (nats, over the full vocabulary) of each candidate right after each prompt.

    Returns one list per prompt, in the order of the candidates. Raises ValueError for an empty
    prompt.
    """
    import torch

    if not all(prompts):
        raise ValueError(f"prompt {[bool(prompt) for prompt in prompts].index(False)}: empty")
    if not prompts:
        return []
    order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i))
    if batch_size is None:
        batch_size = rows_that_fit(model, len(prompts[order[0]]), 2)
    found: dict[int, list[float]] = {}

    def run(batch: list[int]) -> None:
        ids, mask = padded([prompts[i] for i in batch], pad_id, side, model.device)
        ends = ids.shape[1] - 1 - mask.flip(1).argmax(1)
        kept, place = torch.unique(ends, return_inverse=True)
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=_positions(mask),
            logits_to_keep=kept,
            use_cache=False,
        )
        last = output.logits[torch.arange(len(batch), device=ids.device), place]
        chosen = torch.log_softmax(last.float(), dim=-1)[:, list(candidates)]
        found.update(zip(batch, chosen.tolist(), strict=True))

    with evaluating(model):
        in_batches(order, batch_size, run, "prompts")
    return [found[i] for i in range(len(prompts))]


def study_text_losses(model: Any, texts: Sequence[Ids], *, pad_id: int, rows: int) -> list[float]:
    """Mean next-token loss (nats) of each text as the study's code computed it, in the given order.

    Texts are padded on the left to the longest of each `rows` consecutive ones, and a token counts
    when it is no padding itself. So a padded text's first token counts, too, though it is predicted
    from padding, and the longest text's does not: a text's number depends on its neighbours. What
    is predicted from padding also depends on the attention kernel, since such a position sees no
    token at all. Position ids are the model's own default.

    Memory decides how many texts run at once; padding stays that of `rows`, so numbers do, too.
    A text of one token without padding has nothing to count: 0, as there.

    Raises ValueError for an empty text.
    """
    if not all(texts):
        raise ValueError(f"text {[bool(text) for text in texts].index(False)}: empty")
    if not texts:
        return []
    width = {
        start: max(len(text) for text in texts[start : start + rows])
        for start in range(0, len(texts), rows)
    }
    found: dict[int, float] = {}

    def run(batch: list[int]) -> None:
        losses: list[float] = []
        for start, group in groupby(batch, key=lambda i: i - i % rows):
            losses += _study_losses(model, [texts[i] for i in group], pad_id, width[start])
        found.update(zip(batch, losses, strict=True))

    longest = max(width.values())
    with evaluating(model):
        size = min(rows, rows_that_fit(model, longest, longest))
        in_batches(range(len(texts)), size, run, "texts")
    return [found[i] for i in range(len(texts))]


def _longest_first(pairs: Sequence[tuple[Ids, Ids]]) -> list[int]:
    """Longest first, for an early end of memory; but those that share a prefix side by side."""
    longest: dict[tuple[int, ...], int] = {}
    prefixes = [tuple(context[:-1]) for context, _ in pairs]
    for prefix, (_, continuation) in zip(prefixes, pairs, strict=True):
        longest[prefix] = max(longest.get(prefix, 0), len(prefix) + len(continuation))

    def key(i: int) -> tuple[Any, ...]:
        return -longest[prefixes[i]], prefixes[i], -len(pairs[i][1]), i

    return sorted(range(len(pairs)), key=key)


def _continuations(
    model: Any, pairs: list[tuple[Ids, Ids]], pad_id: int, side: str, moments: bool
) -> list[Scored]:
    import torch

    inputs = [[context[-1], *continuation[:-1]] for context, continuation in pairs]
    ids, mask = padded(inputs, pad_id, "right", model.device)
    cache, before = _prefixes(model, [context[:-1] for context, _ in pairs], pad_id, side)
    positions = before.sum(1, keepdim=True) + _positions(mask)
    scored = [Scored([], [], []) for _ in pairs]
    width = ids.shape[1]
    for start in range(0, width, POSITIONS):
        stop = min(start + POSITIONS, width)
        output = model(
            input_ids=ids[:, start:stop],
            attention_mask=torch.cat([before, mask[:, :stop]], dim=1),
            position_ids=positions[:, start:stop],
            past_key_values=cache,
            use_cache=cache is not None or width > POSITIONS,
        )
        cache = output.past_key_values
        for row, (_, continuation) in enumerate(pairs):
            # One row at a time: a float32 copy of the whole batch would be its largest tensor.
            targets = continuation[start:stop]
            if targets:
                _extend(scored[row], output.logits[row, : len(targets)], targets, moments)
    return scored


def _prefixes(model: Any, prefixes: list[Ids], pad_id: int, side: str) -> tuple[Any, Any]:
    """Cache and mask of what stands before the inputs, one row per prefix; equal ones run once."""
    import torch

    places: dict[tuple[int, ...], int] = {}
    chosen = [places.setdefault(tuple(prefix), len(places)) for prefix in prefixes]
    ids, mask = padded(list(places), pad_id, side, model.device)
    rows = torch.tensor(chosen, device=model.device)
    if ids.shape[1] == 0:
        return None, mask[rows]
    output = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=_positions(mask),
        logits_to_keep=1,
        use_cache=True,
    )
    cache = output.past_key_values
    if len(places) < len(prefixes):
        cache.batch_select_indices(rows)
    return cache, mask[rows]


def _extend(scored: Scored, logits: Any, targets: Ids, moments: bool) -> None:
    """Add a row's next positions to its scores. Logits: (positions, vocabulary)."""
    import torch

    spread = torch.log_softmax(logits.float(), dim=-1)
    places = torch.tensor(targets, device=logits.device)[:, None]
    scored.logprobs.extend(spread.gather(1, places)[:, 0].tolist())
    if moments:
        weights = spread.exp()
        mean = (weights * spread).sum(-1, keepdim=True)
        variance = (weights * (spread - mean) ** 2).sum(-1)
        scored.mean.extend(mean[:, 0].tolist())
        scored.variance.extend(variance.tolist())


def _study_losses(model: Any, texts: list[Ids], pad_id: int, width: int) -> list[float]:
    import torch

    filled = [[pad_id] * (width - len(text)) + list(text) for text in texts]
    ids = torch.tensor(filled, device=model.device)
    real = torch.tensor([[0] * (width - len(t)) + [1] * len(t) for t in texts]).to(ids)
    logits = model(input_ids=ids, attention_mask=real, use_cache=False).logits
    losses = []
    for row in range(len(texts)):
        spread = torch.log_softmax(logits[row, :-1].float(), dim=-1)
        loss = -spread.gather(1, ids[row, 1:, None])[:, 0]
        counted = loss[real[row, 1:] == 1]
        losses.append(float(counted.mean()) if len(counted) else 0.0)  # one token alone
    return losses


def _positions(mask: Any) -> Any:
    """Position of each real token in its own row; padding gets a neighbour's."""
    return (mask.cumsum(1) - 1).clamp(min=0)
