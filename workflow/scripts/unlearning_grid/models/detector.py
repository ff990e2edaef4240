"""The refusal detector: a sequence classifier with one class called "refusal"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unlearning_grid.errors import UserError
from unlearning_grid.models.load import device
from unlearning_grid.runtime.job import Job

BATCH_SIZE = 64
MAX_TOKENS = 1024
"""Longer texts are cut; completions of the study have at most 256 tokens."""


def refusal_index(id2label: Mapping[Any, str]) -> int:
    """Class index of the label that is exactly "refusal" (case and outer blanks aside).

    Equality, not containment: "refusal" is a substring of "non-refusal".
    Raises UserError if there is not exactly one such label.
    """
    hits = [int(i) for i, label in id2label.items() if str(label).strip().lower() == "refusal"]
    if len(hits) != 1:
        raise UserError(
            f"refusal detector: id2label {dict(id2label)} has {len(hits)} labels equal to "
            '"refusal"; use a classifier with exactly one'
        )
    return hits[0]


class RefusalDetector:
    """Probability that a text is a refusal."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        """``model``: a HF sequence classifier; raises UserError if its labels are unclear."""
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.index = refusal_index(model.config.id2label)
        limits = [MAX_TOKENS, tokenizer.model_max_length]
        limits.append(getattr(model.config, "max_position_embeddings", MAX_TOKENS))
        self.max_tokens = int(min(limits))

    @classmethod
    def load(
        cls,
        path_or_hub: str | Path,
        revision: str | None = None,
        device: str = "cpu",
        local_only: bool = False,
        key: str = "detector.repo",
    ) -> RefusalDetector:
        """Load a classifier in float32 from a folder or the hub (safetensors only).

        `local_only`: take it from the hub's cache on this machine and download nothing.
        `key`: where the configuration names it.

        Attention is what transformers picks, "sdpa" or "eager": with both the pinned version gives
        ModernBERT the same scores with and without padding, and it ignores `reference_compile`
        (older ones failed there: huggingface/transformers PR 35404).

        Raises UserError when it cannot be had.
        """
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        name = str(path_or_hub)
        where: dict[str, Any] = {"revision": revision, "local_files_only": local_only}
        try:
            tokenizer = AutoTokenizer.from_pretrained(name, **where)
            model: Any = AutoModelForSequenceClassification.from_pretrained(
                name, dtype=torch.float32, use_safetensors=True, **where
            )
        except (OSError, ValueError, ImportError) as error:
            raise UserError(
                f"{key} {name!r}: cannot be loaded ({_first_line(error)}); {_fix(name, revision)}"
            ) from error
        return cls(model.to(device), tokenizer)

    def probabilities(self, texts: Sequence[str]) -> list[float]:
        """Refusal probability of each text, in order.

        Equal texts are scored once.  A text has the same score (to float32 rounding) alone and in
        a padded batch; an empty text is scored as one padding token.
        """
        encoded = {text: self._ids(text) for text in dict.fromkeys(texts)}
        order = sorted(encoded, key=lambda text: len(encoded[text]))
        scores: dict[str, float] = {}
        for start in range(0, len(order), BATCH_SIZE):
            batch = order[start : start + BATCH_SIZE]
            values = self._score([encoded[text] for text in batch])
            scores.update(zip(batch, values, strict=True))
        return [scores[text] for text in texts]

    def _ids(self, text: str) -> list[int]:
        out = self.tokenizer(text, truncation=True, max_length=self.max_tokens)["input_ids"]
        return out or [self._pad_id()]

    def _pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return 0 if pad is None else pad

    def _score(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Refusal probabilities of one batch of token id lists."""
        import torch

        length = max(len(row) for row in rows)
        ids = torch.full((len(rows), length), self._pad_id())
        mask = torch.zeros((len(rows), length), dtype=torch.long)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            mask[i, : len(row)] = 1
        device = self.model.device
        with torch.inference_mode():
            logits = self.model(input_ids=ids.to(device), attention_mask=mask.to(device)).logits
        return logits.float().softmax(-1)[:, self.index].tolist()


def load_detector(job: Job, block: Mapping[str, Any]) -> RefusalDetector:
    """The detector of a spec: pinned on the hub, or trained by a rule (the input "detector").

    It runs on the training device. Raises UserError when it cannot be had.
    """
    if "repo" in block:
        return RefusalDetector.load(block["repo"], revision=block["revision"], device=device())
    return RefusalDetector.load(job.artefact("detector", "model"), device=device())


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _fix(name: str, revision: str | None) -> str:
    if Path(name).is_absolute():
        return "give the folder of a sequence classifier with safetensors"
    pin = f" --revision {revision}" if revision else ""
    return (
        f"fetch it where the hub is in reach (make prefetch, or hf download {name}{pin}) into the "
        "HF_HOME of the jobs, or train a stand-in from the rows with detector.train"
    )
