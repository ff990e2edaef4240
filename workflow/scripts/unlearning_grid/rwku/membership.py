"""Membership-inference scores of a text from its tokens' log-probabilities, and their separation.

Loss (Yeom et al. 2018), zlib (Carlini et al. 2021), Min-K% (Shi et al. 2024) and Min-K%++ (Zhang
et al. 2024, arXiv 2404.02936), as RWKU computes them.
"""

import math
import zlib
from collections.abc import Sequence
from typing import Any

PERCENTS = tuple(range(10, 101, 10))
"""Shares of the tokens with the lowest values that Min-K and Min-K++ average, in per cent."""


def scores(
    logprobs: Sequence[float] | Any,
    mean: Sequence[float] | Any,
    variance: Sequence[float] | Any,
    text: str,
) -> dict[str, float | None]:
    """Scores of one text; None is a missing value, and no value is NaN or infinite.

    `logprobs` [tokens]: log-probability of each scored token, in nats. `mean` and `variance`
    [tokens]: of the log-probability under the model's own next-token distribution at that place.

    - "loss": mean negative log-likelihood, nats per token; lower means better known.
    - "zlib": minus the loss over the bytes of the compressed text (UTF-8, zlib's default level).
    - "min_k_10" ... "min_k_100": mean of the lowest int(tokens * share) log-probabilities.
    - "min_k_plus_plus_10" ... "_100": the same of (logprob - mean) / sqrt(variance).

    In all but the loss, higher means better known. Missing: everything for a text without tokens;
    a share of fewer than one token; and what needs a place without variance, where the last score
    is not defined: such places stand last in its order. Raises ValueError if lengths differ.
    """
    import numpy as np

    values, means, variances = (np.asarray(x, dtype=float) for x in (logprobs, mean, variance))
    if not values.shape == means.shape == variances.shape or values.ndim != 1:
        shapes = f"{values.shape}, {means.shape} and {variances.shape}"
        raise ValueError(f"logprobs, mean and variance need one value per token, got {shapes}")
    loss = _finite(-values.mean()) if values.size else None
    size = len(zlib.compress(text.encode("utf-8")))
    found = {"loss": loss, "zlib": None if loss is None else -loss / size}
    spread = np.sqrt(np.where(variances > 0, variances, np.nan))
    with np.errstate(invalid="ignore"):  # an impossible token: minus infinity on both sides
        standard = (values - means) / spread
    for name, ranked in (("min_k", np.sort(values)), ("min_k_plus_plus", np.sort(standard))):
        for percent in PERCENTS:
            lowest = ranked[: int(len(ranked) * (percent / 100))]
            found[f"{name}_{percent}"] = _finite(lowest.mean()) if lowest.size else None
    return found


def separation(forget: Sequence[float], retain: Sequence[float]) -> float | None:
    """Area under the ROC curve: how often a forget text's score exceeds a retain text's, in [0, 1].

    Mann and Whitney's U over the number of pairs, ties counted half; .5 means no separation. None
    if either group is empty. Raises ValueError for a value that is no number.
    """
    import numpy as np

    left, right = np.asarray(forget, dtype=float), np.sort(np.asarray(retain, dtype=float))
    if np.isnan(left).any() or np.isnan(right).any():
        raise ValueError("a score is not a number; leave missing scores out")
    if not left.size or not right.size:
        return None
    below = np.searchsorted(right, left, side="left") + np.searchsorted(right, left, side="right")
    return float(below.sum() / (2 * left.size * right.size))


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None
