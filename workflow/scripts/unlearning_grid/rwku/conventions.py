"""The three ways of scoring RWKU, and what may become of a row (docs/metrics.md)."""

PAPER = "paper"
"""What the study's code computed."""

RWKU = "rwku"
"""What the benchmark's own evaluator computes."""

CORRECTED = "corrected"
"""What the metric's definition says; the default column."""

CONVENTIONS = (CORRECTED, PAPER, RWKU)

MAX_TEXT_TOKENS = 2048
"""Membership texts are cut here, as in the study."""

LETTERS = ("A", "B", "C", "D")
"""Names of the choices of a multiple-choice question."""

OK = "ok"
EMPTY = "empty"
"""Nothing was said: scores 0 and is counted."""

REPEATED = "repeated"
"""An earlier row of the benchmark asks the same: this convention leaves the row out."""

CRASH = "crash"
"""The convention's own scorer raises on this output: no score, and none for means with it."""

UNDEFINED = "undefined"
"""The row has no such score (a choice among one, a loss that is no number): missing, counted."""
