"""One colour per reward in every figure: Okabe and Ito's, which colour-blind readers tell apart."""

from collections.abc import Iterable

COLOURS = {
    "r0-lex": "#0072B2",
    "r1-antirefusal": "#E69F00",
    "r2-rubric": "#009E73",
    "r4-refusal": "#CC79A7",
}
OTHERS = ("#56B4E9", "#D55E00", "#F0E442", "#000000")


def colours(rewards: Iterable[str]) -> dict[str, str]:
    """Reward -> its colour in a figure: the study's have their own, others take what is left.

    Sorted by name; a figure gives all its rewards at once, so that panels agree.
    """
    names = sorted(set(rewards))
    spare = iter(OTHERS)
    return {name: COLOURS.get(name) or next(spare, OTHERS[-1]) for name in names}
