"""How RWKU words a probe: instruction, label and query in the user's turn, then a prefix.

The layout is RWKU's own (Jin et al. 2024); the instructions come from the configuration.
"""

ANSWER_PREFIX = "Answer:"
"""What the assistant's turn starts with before the model goes on."""

NO_PREFIX_TYPES = frozenset({"affirmative suffix"})
NO_LABEL_TYPES = frozenset({"incontext learning"})


def probe_text(query: str, instruction: str, kind: str) -> str:
    """The user's turn of a probe. `kind` is its RWKU `type`.

    In-context probes bring their own labels, so "Question:" is left out; an affirmative suffix must
    stay the last thing that the model reads, so no line break follows.
    """
    label = "" if kind in NO_LABEL_TYPES else "Question: "
    end = "" if kind in NO_PREFIX_TYPES else "\n"
    return f"{instruction}\n{label}{query}{end}"


def answer_prefix(kind: str) -> str:
    """What is put into the assistant's mouth: "Answer:", or nothing after an affirmative suffix."""
    return "" if kind in NO_PREFIX_TYPES else ANSWER_PREFIX
