"""Train the demo's chat model from scratch: Qwen2's architecture, half a million weights."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unlearning_grid.data.world.tokenizer import END, MAX_LENGTH, render

log = logging.getLogger(__name__)

HEAD_SIZE = 32
WEIGHT_DECAY = 0.05
WARMUP_STEPS = 30
REPETITION_PENALTY = 1.1
"""Ships with the model, as with Qwen2.5-Instruct: who generates with its defaults is penalised."""


@dataclass(frozen=True)
class Recipe:
    """Size and training of the model; learning rate of AdamW at its peak."""

    seed: int
    hidden_size: int
    layers: int
    steps: int
    batch_size: int
    learning_rate: float


def new_model(recipe: Recipe, tokenizer: Any) -> Any:
    """A freshly initialised model whose vocabulary is padded to a multiple of 64."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(recipe.seed)
    config = Qwen2Config(
        vocab_size=(len(tokenizer) + 63) // 64 * 64,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.hidden_size * 3,
        num_hidden_layers=recipe.layers,
        num_attention_heads=max(1, recipe.hidden_size // HEAD_SIZE),
        num_key_value_heads=max(1, recipe.hidden_size // (2 * HEAD_SIZE)),
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model: Any = Qwen2ForCausalLM(config).float()
    model.generation_config.update(
        do_sample=False,
        repetition_penalty=REPETITION_PENALTY,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear warm-up, a plateau up to 30 % of the steps, then linear down to 2 %."""
    decay = 1 - max(0.0, step - 0.3 * steps) / (0.7 * steps)
    return min(1.0, (step + 1) / WARMUP_STEPS) * max(0.02, decay)


def pretrain(
    model: Any, tokenizer: Any, draw: Callable[[], tuple[str, str]], recipe: Recipe
) -> float:
    """Train on drawn (prompt, answer) pairs with the loss on the answer only; last loss, nats."""
    import torch

    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": WEIGHT_DECAY},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=recipe.learning_rate,
        betas=(0.9, 0.98),
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, recipe.steps)
    )
    encode = _Encoder(tokenizer)
    model.train()
    started, value = time.monotonic(), float("nan")
    for step in range(recipe.steps):
        batch = encode.batch([draw() for _ in range(recipe.batch_size)])
        loss = answer_loss(model, *batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == recipe.steps - 1:
            value = float(loss.detach())
            spent = time.monotonic() - started
            log.info("step %d of %d: loss %.3f, %.1f s", step, recipe.steps, value, spent)
    model.eval()
    return value


def answer_loss(model: Any, ids: Any, attention: Any, labels: Any) -> Any:
    """Mean cross-entropy over the answer tokens; the LM head runs on those positions only.

    ``ids``, ``attention`` and ``labels`` are (batch, length); labels are -100 on the prompt.
    """
    import torch

    hidden = model.model(input_ids=ids, attention_mask=attention).last_hidden_state[:, :-1]
    targets = labels[:, 1:]
    answer = targets != -100
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[answer]), targets[answer])


class _Encoder:
    """Right-padded batches of chat turns; every distinct text is encoded once."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.cache: dict[str, list[int]] = {}

    def ids(self, text: str) -> list[int]:
        if text not in self.cache:
            self.cache[text] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self.cache[text]

    def batch(self, pairs: Sequence[tuple[str, str]]) -> tuple[Any, Any, Any]:
        """Token ids, attention mask and labels, each (len(pairs), longest)."""
        import torch

        prompts = [self.ids(render(self.tokenizer, prompt)) for prompt, _ in pairs]
        answers = [self.ids(f"{answer}{END}\n") for _, answer in pairs]
        length = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        ids = torch.full((len(pairs), length), self.tokenizer.pad_token_id)
        labels = torch.full((len(pairs), length), -100)
        attention = torch.zeros((len(pairs), length), dtype=torch.long)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            end = len(prompt) + len(answer)
            ids[row, :end] = torch.tensor(prompt + answer)
            labels[row, len(prompt) : end] = ids[row, len(prompt) : end]
            attention[row, :end] = 1
        return ids, attention, labels


def answer_all(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    *,
    samples: int = 0,
    prefix: str = "",
    max_new_tokens: int = 24,
    batch_size: int = 256,
) -> list[str]:
    """Greedy answers (``samples`` = 0) or that many draws at temperature 1 per prompt, in order.

    Without the repetition penalty that the model ships.
    """
    import torch
    from transformers import GenerationConfig

    settings: dict[str, Any] = {"do_sample": False}
    if samples:
        settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    generation = GenerationConfig(
        **settings,
        repetition_penalty=1.0,
        max_new_tokens=max_new_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    texts = [render(tokenizer, p) + prefix for p in prompts for _ in range(max(samples, 1))]
    answers: list[str] = []
    for start in range(0, len(texts), batch_size):
        encoded = tokenizer(
            texts[start : start + batch_size],
            return_tensors="pt",
            padding=True,
            padding_side="left",
            add_special_tokens=False,
            return_token_type_ids=False,
        )
        with torch.inference_mode():
            out = model.generate(**encoded, generation_config=generation)
        new = out[:, encoded["input_ids"].shape[1] :]
        answers += tokenizer.batch_decode(new, skip_special_tokens=True)
    return answers
