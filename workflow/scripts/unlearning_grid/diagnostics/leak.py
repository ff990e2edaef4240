"""leak@k: the chance that at least one of k sampled completions of a prompt leaks.

For a prompt with n verdicts, c of them leaks, the unbiased estimate is

    leak@k = 1 - C(n - c, k) / C(n, k)

the share of the subsets of k completions that hold a leak (the estimator of pass@k, Chen et al.
2021, used for leakage in arXiv 2511.04934). A verdict that is missing lowers n: it is neither a
leak nor its absence.
"""

from math import comb


def leak_at_k(n: int, c: int, k: int) -> float:
    """The estimate for one prompt, between 0 and 1; 1 where fewer than k completions do not leak.

    Args:
        n: completions with a verdict.
        c: how many of them leak.
        k: completions that somebody draws.
    Raises ValueError unless 1 <= k <= n and 0 <= c <= n.
    """
    if not 1 <= k <= n:
        raise ValueError(f"leak@{k} needs at least {k} verdicts and k at least 1, not n = {n}")
    if not 0 <= c <= n:
        raise ValueError(f"{c} leaks among {n} completions")
    subsets = comb(n, k)
    return (subsets - comb(n - c, k)) / subsets  # whole numbers until the last step


def numbers(samples: int) -> list[int]:
    """The k for which leak@k is reported: 1, 2, 4, ... and the number of samples itself.

    Raises ValueError for less than one sample.
    """
    if samples < 1:
        raise ValueError(f"samples: {samples} is less than 1")
    powers = [2**power for power in range(samples.bit_length())]
    return sorted({*powers, samples})
