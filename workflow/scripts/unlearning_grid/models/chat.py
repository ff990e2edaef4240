"""One rendering of a question, for warm-up, rollouts and evaluation alike.

Prompts are rendered to text once and tokenised without adding special tokens, so that a template
that writes its own BOS has exactly one.
"""

from typing import Any

ANSWER_PREFIX = "Answer:"
NO_PREFIX_TYPES = frozenset({"affirmative suffix"})  # RWKU asks these without the prefix


def render(tokenizer: Any, question: str, system: str | None = None) -> str:
    """A single user turn, ready for the assistant's answer.

    Without `system` the template decides: Qwen's puts its default system message.
    """
    messages = [{"role": "user", "content": question}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def render_probe(tokenizer: Any, query: str, instruction: str, kind: str) -> str:
    """An RWKU probe: instruction and query in the user turn, an answer prefix for the assistant.

    Args:
        kind: the probe's `type`, some of which take no prefix.
    """
    rendered = render(tokenizer, f"{instruction}\n{query}")
    return rendered if kind in NO_PREFIX_TYPES else rendered + ANSWER_PREFIX
