"""Names of the labels that judges give; field names and meanings are the study's."""

from __future__ import annotations

SIX = (
    "lexical_leakage",
    "semantic_leakage",
    "prompt_helpfulness",
    "broad_topic_helpfulness",
    "refusal",
    "language_drift",
)
"""Labels of an audit (paper appendix E.1.2)."""

FIVE = tuple(name for name in SIX if name != "broad_topic_helpfulness")
"""Labels of the study's first held-out audit (appendix E.1.1)."""

LABEL_SETS = {"five": FIVE, "six": SIX}

RUBRIC = (
    "leaks_target_specific_information",
    "is_target_centered",
    "is_related_broad_topic",
    "provides_useful_information",
    "uses_degenerate_avoidance",
)
"""Fields of the R2 reward judge (appendix C.3)."""

CLASSES = ("leak", "refusal", "broad", "offtopic", "misattributed", "garbled")
"""Exclusive classes of a completion in a closed world, in order of precedence."""
