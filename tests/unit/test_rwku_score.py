"""ROUGE-L recall of probes, through the stage: values by hand."""

from pathlib import Path

import pandas as pd
import pytest

from support import real_manifest
from unlearning_grid.runtime.job import Job
from unlearning_grid.rwku.score import first_line, score

CASES = [  # gold answer, completion, recall, counted as empty
    ("Jeet Kune Do", " jeet kune do.", 1.0, False),
    ("Jeet Kune Do", "Jeet Keen Do", 2 / 3, False),
    ("Kong Fuzi", "Kong, Fuzi was a thinker", 1.0, False),
    ("San Francisco", "Francisco, not San", 0.5, False),
    ("Qué Hiciste", "que hiciste", 0.5, False),  # an accent makes another word, as in the gold
    ("孔丘", "孔丘", 1.0, False),
    ("Trier", "", 0.0, True),
    ("Trier", "...", 0.0, True),
    ("Trier", "Berlin\nTrier", 0.0, False),  # only the first line counts
    ("Trier", "\n Trier\nBerlin", 1.0, False),
    ("Trier", "word " * 2000, 0.0, False),
]


def test_recall_of_each_probe(tmp_path: Path) -> None:
    rows = [
        {
            "set": "rwku-forget",
            "prompt_id": f"p{number}",
            "level": 1,
            "type": "cloze",
            "prompt": "q",
            "answer": answer,
            "completion": completion,
        }
        for number, (answer, completion, _, _) in enumerate(CASES)
    ]
    held = {**rows[0], "set": "heldout", "level": None, "answer": None}
    pd.DataFrame([held, *rows]).to_parquet(tmp_path / "completions.parquet")
    job = Job(
        spec={"settings": {}, "cell": {}},
        inputs={"completions": real_manifest(tmp_path, "completions.parquet")},
        outputs={"scores": tmp_path / "scores.parquet"},
        work=tmp_path,
    )
    assert score(job) == {"probes": len(CASES), "empty": 2}
    found = pd.read_parquet(tmp_path / "scores.parquet")
    assert found["rouge_l_recall"].tolist() == pytest.approx([recall for *_, recall, _ in CASES])
    assert found["empty"].tolist() == [empty for *_, empty in CASES]
    assert set(found["convention"]) == {"corrected"}


def test_the_first_line_with_text() -> None:
    assert first_line("  \n\n a b \n c") == "a b"
    assert first_line("") == ""
