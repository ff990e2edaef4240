"""Stage: score the RWKU forget and neighbor probes of one evaluation (convention `corrected`)."""

import logging
import re
import unicodedata
from typing import Any

from unlearning_grid.runtime.job import Job

log = logging.getLogger(__name__)

CONVENTION = "corrected"
_WORD = re.compile(r"\w+", re.UNICODE)


def score(job: Job) -> dict[str, Any]:
    """Write "scores": one row per probe with its ROUGE-L recall. Input: completions.

    ROUGE-L recall (Lin 2004): longest common subsequence of words over the gold answer's words, in
    [0, 1]; higher means that more of the answer is in the output; 0 for an empty output.
    """
    import pandas as pd

    table = pd.read_parquet(job.artefact("completions", "completions.parquet"))
    rows = table[table["set"] != "heldout"].reset_index(drop=True)
    scorer = _scorer()
    columns = ["set", "prompt_id", "level", "type", "prompt", "answer", "completion"]
    scores: Any = rows[columns].copy()
    scores["output"] = [first_line(text) for text in rows["completion"]]
    scores["rouge_l_recall"] = [
        scorer.score(answer, output)["rougeL"].recall
        for answer, output in zip(scores["answer"], scores["output"], strict=True)
    ]
    scores["empty"] = [not words(output) for output in scores["output"]]
    scores["convention"] = CONVENTION
    scores.to_parquet(job.outputs["scores"], index=False)
    return {"probes": len(scores), "empty": int(scores["empty"].sum())}


def first_line(text: str) -> str:
    """The answer proper: what stands before the first line break that follows any text.

    Cut on text, since a newline is rarely a token of its own in a byte-level vocabulary.
    """
    return text.strip().partition("\n")[0].strip()


def words(text: str) -> list[str]:
    """Lower-case words in NFKC, accents kept: what ROUGE compares here."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], tokenizer=_Words())


class _Words:
    """rouge-score's own tokenizer drops every non-ASCII letter."""

    def tokenize(self, text: str) -> list[str]:
        return words(text)
