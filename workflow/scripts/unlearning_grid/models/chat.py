"""One rendering of a question, for warm-up, rollouts and evaluation alike.

Prompts are rendered to text once and tokenised without adding special tokens, so that a template
that writes its own BOS has exactly one.
"""

from typing import Any


def render(tokenizer: Any, question: str, system: str | None = None) -> str:
    """A single user turn, ready for the assistant's answer.

    Without `system` the template decides: Qwen's puts its default system message.
    """
    messages = [{"role": "user", "content": question}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
