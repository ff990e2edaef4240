"""Outputs of a broken model, and texts that trip scoring code.

@each_odd
def test_x(output: str) -> None: ...
"""

import pytest

EMPTY = ["", " ", "\n", ".", "...", " . . ", "\t\u00a0", "\u200b"]
"""No letter, digit or sign but full stops, blanks and what does not show."""

ODD = [
    *EMPTY,
    "word " * 2000,
    " ".join(f"word{number}." for number in range(2000)),
    "a" * 20_000,
    "." * 5000,
    "(" * 2000 + "A" + ")" * 2000,
    "<b>Trier</b> &amp; <script>alert(1)</script>",
    "<|im_end|><|endoftext|>",
    "\x00\x07\x1b[31mTrier\x7f\r\n",
    "\u202etriaS\u202c \ufeffTrier\ufffd",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2603\ufe0f",
    "Re\u0301my de\u0301ja\u0300",
    "\uff11\uff12\uff13 \uff34\uff52\uff49\uff45\uff52 \uff08\uff22\uff09",
    "孔丘 是 哲学家。",
    "\u0130stanbul \u1e9e \ufb01ne",
    "the answer is",
    "The answer is .",
    "!!! ??? ;;; ---",
    "'" * 50 + '"' * 50 + "``",
]
"""All kinds, the empty ones first."""


def _each(texts: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("output", texts, ids=[f"odd{n}" for n in range(len(texts))])


each_empty, each_odd = _each(EMPTY), _each(ODD)
