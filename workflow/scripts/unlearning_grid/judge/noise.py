"""Errors that a rules judge makes on purpose: a fixed draw from (seed, prompt, completion)."""

from __future__ import annotations

import hashlib

from unlearning_grid.data.knowledge import normalise_prompt
from unlearning_grid.data.matching import fold
from unlearning_grid.errors import UserError


class Errors:
    """Says on which texts a judge errs. Equal texts, up to spelling, get equal draws."""

    def __init__(self, rate: float, seed: int) -> None:
        """``rate``: share of the texts, 0 to 1.  Raises UserError for another number."""
        if not 0 <= rate <= 1:
            raise UserError(f"judge.error_rate: {rate} is no share; use 0 to 1")
        self.rate = rate
        self.seed = seed

    def on(self, prompt: str, completion: str) -> bool:
        """Whether the judge errs on this completion."""
        key = "\x00".join([str(self.seed), normalise_prompt(prompt), fold(completion)])
        draw = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
        return draw < self.rate
