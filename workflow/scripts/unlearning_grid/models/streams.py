"""Samples that depend on nothing but their own seed: not on the batch, not on the order.

A batch that is sampled from one generator gives each row other numbers when the batch is cut
differently, after a resume or an out-of-memory error. Here each row draws from a generator of its
own, one number a token, by inversion of the cumulative distribution.
"""

import random
from collections.abc import Sequence
from typing import Any


class OwnStreams:
    """A logits processor for greedy search that puts all weight on one sampled token per row.

    Args:
        seeds: one per row of the batch.
        temperature: above 0; divides the logits.
        top_p: share of the probability that the candidates hold at least, 1.0 for all tokens
            (nucleus sampling, Holtzman et al. 2020).
    """

    def __init__(self, seeds: Sequence[int], temperature: float, top_p: float = 1.0) -> None:
        self.generators = [random.Random(seed) for seed in seeds]
        self.temperature = temperature
        self.top_p = top_p

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """`scores` (rows, vocabulary) with 0 at the sampled tokens and -inf elsewhere."""
        import torch
        from transformers import TopPLogitsWarper

        scaled = scores.double() / self.temperature
        if self.top_p < 1.0:
            scaled = TopPLogitsWarper(self.top_p)(input_ids, scaled)
        cumulative = scaled.softmax(-1).cumsum(-1)
        drawn = [[generator.random()] for generator in self.generators]
        points = torch.tensor(drawn, dtype=torch.double, device=scores.device)
        # The first token whose cumulative probability exceeds the point has a positive one itself.
        chosen = torch.searchsorted(cumulative, points * cumulative[:, -1:], right=True)
        chosen = chosen.clamp(max=scores.shape[-1] - 1)
        return torch.full_like(scores, float("-inf")).scatter(-1, chosen, 0.0)
