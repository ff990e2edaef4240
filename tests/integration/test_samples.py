"""Samples of the micro grid: as many as asked for, more of them added, and what the tables say."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from integration.conftest import MICRO
from support import snakemake
from unlearning_grid.generate.sampled import sample_seed

pytestmark = pytest.mark.xdist_group("micro")

EVALUATION = "grpo/tiny/bruce-lee/cold/r0-lex/s0/on/bruce-lee"
PROMPTS, SAMPLES = 8, 4


def samples(folder: Path) -> Any:
    return pd.read_parquet(folder / "results" / "samples" / EVALUATION / "samples.parquet")


def test_every_prompt_is_sampled_with_its_own_seeds(micro: Path) -> None:
    table: Any = samples(micro)
    assert table.columns.tolist() == [
        "prompt_id",
        "prompt",
        "rendered",
        "sample",
        "seed",
        "completion",
        "tokens",
        "finish_reason",
    ]
    assert table["sample"].tolist() == [0, 1, 2, 3] * PROMPTS
    assert table["prompt_id"].nunique() == PROMPTS and table["seed"].is_unique
    first = table.iloc[5]
    assert first["seed"] == sample_seed(0, first["prompt_id"], 1)
    assert table.groupby("prompt_id")["completion"].nunique().max() > 1, "they must differ"
    assert set(table["finish_reason"]) <= {"stop", "length"} and table["tokens"].max() <= 24


def test_more_samples_add_to_those_that_are_there(micro_copy: Path, tmp_path: Path) -> None:
    before = samples(micro_copy)
    changed = tmp_path / "changed.yaml"
    text = MICRO.read_text(encoding="utf-8")
    assert "samples: 4}" in text
    changed.write_text(text.replace("samples: 4}", "samples: 6}"))
    words = ["--cores", "2", "--configfile", str(changed)]
    done = snakemake(words, micro_copy, [f"results/samples/{EVALUATION}/manifest.json"])
    assert done.returncode == 0, done.stdout + done.stderr
    log = micro_copy / "results/samples" / EVALUATION / "sample_completions.log"
    assert "samples: 32 of 48 rows kept from an earlier run" in log.read_text()
    after = samples(micro_copy)
    assert len(after) == PROMPTS * 6
    kept = after[after["sample"] < 4].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, before)


def test_one_judge_labels_samples_and_greedy_answers(micro: Path) -> None:
    labels: Any = pd.read_parquet(micro / "results/sampled/audit" / EVALUATION / "labels.parquet")
    assert labels["decoding"].value_counts().to_dict() == {"sampled": 32, "greedy": 8}
    assert set(labels["judge"]) == {"rules:oracle"} and labels["detector"].isna().all()
    sampled = labels[labels["decoding"] == "sampled"].reset_index(drop=True)
    assert sampled["completion"].tolist() == samples(micro)["completion"].tolist()
    assert labels["semantic_leakage"].notna().all()


def test_the_table_is_the_labels(micro: Path) -> None:
    """leak@1 is the share of samples that leak, leak@4 that of prompts with a leak among four."""
    labels: Any = pd.read_parquet(micro / "results/sampled/audit" / EVALUATION / "labels.parquet")
    sampled = labels[labels["decoding"] == "sampled"]
    by_prompt = sampled.groupby("prompt_id")["semantic_leakage"]
    table: Any = pd.read_parquet(micro / "results/tables/leak_at_k_targets.parquet")
    rows = table[(table["policy"] == EVALUATION.partition("/on/")[0])]
    rows = rows[rows["event"] == "semantic"].set_index("k")
    assert rows.index.tolist() == [1, 2, 4]
    assert rows.loc[1, "value"] == pytest.approx(sampled["semantic_leakage"].mean())
    assert rows.loc[4, "value"] == pytest.approx(by_prompt.max().mean())
    assert rows["value"].is_monotonic_increasing and (rows["prompts"] == PROMPTS).all()
    greedy = labels.loc[labels["decoding"] == "greedy", "semantic_leakage"].mean()
    assert (rows["greedy"] == greedy).all()
    png = (micro / "results/figures/leak_at_k.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and len(png) > 20_000
