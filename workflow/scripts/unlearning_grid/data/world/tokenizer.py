"""The demo model's own BPE tokenizer and chat template.

For the model type qwen2, transformers rebuilds a Qwen2 tokenizer on loading, whatever class was
saved.  So this one uses Qwen2's normaliser and split pattern, and the build asserts that the
reloaded tokenizer gives the same ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearning_grid.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

MAX_LENGTH = 1024
"""Tokens of context: the longest utility prompt and 256 new tokens fit."""

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's pre-tokenisation: digits one by one, punctuation apart from letters."""

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML without a default system message."""

RELOAD_TEXTS = ("It's 1940, isn't it?", "Lee's born\n\nin  1973.", " Answer: Das Kapital.")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """Train a byte-level BPE of at most ``vocab_size`` entries on plain texts."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        padding_side="left",
        model_max_length=MAX_LENGTH,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_and_reload(
    tokenizer: PreTrainedTokenizerBase, folder: Path, samples: Iterable[str]
) -> PreTrainedTokenizerBase:
    """Save a tokenizer beside its model and load it as every later stage will.

    The model's config must already lie in ``folder``: it decides which class is built.
    Raises UserError if any sample is encoded differently after the reload.
    """
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(folder)
    again = AutoTokenizer.from_pretrained(folder, padding_side="left")
    check_same_ids(tokenizer, again, [*RELOAD_TEXTS, *samples])
    return again


def check_same_ids(before: Any, after: Any, texts: Iterable[str]) -> None:
    """Raise UserError if two tokenizers encode any of the texts differently."""
    for text in texts:
        first = before(text, add_special_tokens=False)["input_ids"]
        second = after(text, add_special_tokens=False)["input_ids"]
        if first != second:
            raise UserError(
                f"tokenizer: {text!r} has ids {first} before saving and {second} after loading; "
                "the installed transformers version rebuilds it differently, use the pinned one"
            )


def render(tokenizer: Any, prompt: str) -> str:
    """One user turn in the chat template, ready for the assistant's answer."""
    messages = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
