"""A policy's RWKU scores do not depend on how its rows were batched, padded or ordered."""

import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from integration.conftest import MICRO
from support import real_manifest
from training_job import all_settings
from unlearning_grid.audit.heldout import audit
from unlearning_grid.errors import UserError
from unlearning_grid.generate.greedy import generate
from unlearning_grid.models.likelihood import score_continuations
from unlearning_grid.models.policy import Policy
from unlearning_grid.ops.__main__ import main
from unlearning_grid.runtime.job import Job
from unlearning_grid.rwku.likelihood import score

pytestmark = [pytest.mark.xdist_group("micro"), pytest.mark.usefixtures("one_thread")]

POLICIES = ("base/tiny", "grpo/tiny/bruce-lee/warm/r2-rubric/s0")
LIKELIHOODS = ("mia", "general", "truthfulness")
TOLERANCE = 1e-5


def job(micro: Path, folder: Path, stage: str, policy: str, **settings: Any) -> Job:
    """The job of one evaluation stage of the micro grid, with some settings changed."""
    results = micro / "results"
    spec = all_settings(results / stage / policy / "on/bruce-lee")
    spec["settings"] |= settings
    made_by = {
        "prompts": "prompts/tiny/on/bruce-lee",
        "split": "data/bruce-lee/split",
        "model": "world",
    }
    if not policy.startswith("base/"):
        made_by["policy"] = policy
    names = [*LIKELIHOODS, "completions"]
    (folder / "work/key").mkdir(parents=True)
    return Job(
        spec=spec,
        inputs={name: results / made / "manifest.json" for name, made in made_by.items()},
        outputs={name: folder / f"{name}.parquet" for name in names},
        work=folder / "work/key",
    )


def likelihoods(micro: Path, folder: Path, policy: str, **settings: Any) -> dict[str, Any]:
    score(job(micro, folder, "likelihoods", policy, **settings))
    return {name: pd.read_parquet(folder / f"{name}.parquet") for name in LIKELIHOODS}


def numbers(table: pd.DataFrame) -> list[float]:
    """Every number of a table, lists in order."""
    found: list[float] = []
    for column in table.columns.difference(["config", "prompt_id", "choices", "truncated"]):
        for value in table[column]:
            found += [float(x) for x in (value if hasattr(value, "__len__") else [value])]
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_likelihoods_at_batch_1_and_32(micro: Path, tmp_path: Path, policy: str) -> None:
    one = likelihoods(micro, tmp_path / "one", policy, batch_size=1)
    many = likelihoods(micro, tmp_path / "many", policy, batch_size=32)
    for name in LIKELIHOODS:
        found = numbers(one[name])
        assert len(found) > 10
        assert found == pytest.approx(numbers(many[name]), abs=TOLERANCE, rel=2e-6, nan_ok=True), (
            name
        )


@pytest.mark.parametrize("policy", POLICIES)
def test_likelihoods_shuffled_and_padded_on_either_side(
    micro: Path, tmp_path: Path, policy: str
) -> None:
    made = job(micro, tmp_path, "likelihoods", policy)
    loaded = Policy(made)
    rows = pd.read_parquet(made.artefact("prompts", "prompts") / "rwku-truthfulness.parquet")
    pairs = [
        (ids.tolist(), choice.tolist())
        for ids, choices in zip(rows["ids"], rows["choice_ids"], strict=True)
        for choice in choices
    ]
    order = list(range(len(pairs)))
    random.Random(0).shuffle(order)
    pad = loaded.tokenizer.pad_token_id
    plain, right = (
        score_continuations(loaded.model, pairs, pad_id=pad, batch_size=32, side=side)
        for side in ("left", "right")
    )
    mixed = score_continuations(loaded.model, [pairs[i] for i in order], pad_id=pad, batch_size=7)
    for place, i in enumerate(order):
        expected = pytest.approx(plain[i].logprobs, abs=TOLERANCE)
        assert right[i].logprobs == expected
        assert mixed[place].logprobs == expected


def test_completions_at_batch_1_and_32(micro: Path, tmp_path: Path) -> None:
    found = []
    for size in (1, 32):
        folder = tmp_path / str(size)
        generate(job(micro, folder, "completions", POLICIES[1], batch_size=size))
        found.append(pd.read_parquet(folder / "completions.parquet"))
    pd.testing.assert_frame_equal(*found)
    published = micro / f"results/completions/{POLICIES[1]}/on/bruce-lee/completions.parquet"
    pd.testing.assert_frame_equal(found[0], pd.read_parquet(published))


def test_the_penalty_that_the_model_ships_changes_what_only_the_paper_reads(micro: Path) -> None:
    folder = micro / "results/completions/base/tiny/on/bruce-lee/completions.parquet"
    table = pd.read_parquet(folder)
    twice = ["heldout", "rwku-forget", "rwku-neighbor"]
    assert sorted(set(table[table["decoding"] == "shipped"]["set"])) == twice
    both = table[table["set"].isin(twice)].pivot(
        index=["set", "prompt_id"], columns="decoding", values="completion"
    )
    assert both["plain"].tolist() != both["shipped"].tolist()
    rows = pd.read_parquet(micro / "results/rwku/base/tiny/on/bruce-lee/forget.parquet")
    assert set(rows[rows["decoding"] == "shipped"]["convention"]) == {"paper"}


def test_a_set_is_scored_once_and_then_kept(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = job(micro, tmp_path, "likelihoods", POLICIES[0])
    score(made)
    first = {name: (tmp_path / f"{name}.parquet").read_bytes() for name in LIKELIHOODS}

    def nothing(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded although every set is kept")

    monkeypatch.setattr("unlearning_grid.models.policy.load_model", nothing)
    score(made)
    assert {n: (tmp_path / f"{n}.parquet").read_bytes() for n in LIKELIHOODS} == first


def audit_job(micro: Path, folder: Path, completions: Path, decoding: str) -> Job:
    results = micro / "results"
    spec = all_settings(results / "audit/base/tiny/on/bruce-lee")
    spec["settings"]["decoding"] = decoding
    folder.mkdir()
    return Job(
        spec=spec,
        inputs={
            "completions": completions,
            "knowledge": results / "data/bruce-lee/knowledge/manifest.json",
            "detector": results / "detector/micro-refusal/manifest.json",
        },
        outputs={"labels": folder / "labels.parquet"},
        work=folder,
    )


def test_the_audit_reads_the_decoding_that_it_is_told(micro: Path, tmp_path: Path) -> None:
    source = micro / "results/completions/base/tiny/on/bruce-lee"
    table = pd.read_parquet(source / "completions.parquet")
    held = table[table["set"] == "heldout"]
    for decoding in ("plain", "shipped"):
        folder = tmp_path / decoding
        audit(audit_job(micro, folder, source / "manifest.json", decoding))
        labelled = pd.read_parquet(folder / "labels.parquet")["completion"].tolist()
        assert labelled == held[held["decoding"] == decoding]["completion"].tolist()
    only = tmp_path / "only"
    only.mkdir()
    table[table["decoding"] == "plain"].to_parquet(only / "completions.parquet", index=False)
    made = audit_job(
        micro, tmp_path / "none", real_manifest(only, "completions.parquet"), "shipped"
    )
    with pytest.raises(UserError, match=r"audit\.decoding: no held-out .* set it to plain"):
        audit(made)


def test_the_command_shows_what_the_tables_hold(
    micro: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(micro)
    words = ["conventions", "base/tiny", "--config", str(MICRO), "--directory", str(micro)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    table = pd.read_parquet(micro / "results/tables/rwku_core_targets.parquet")
    base = table[(table["kind"] == "base") & (table["metric"] == "mia_forget")]
    values = dict(zip(base["convention"], base["value"], strict=True))
    cells = " | ".join(f"{values[name]:.3f}" for name in ("corrected", "paper", "rwku"))
    assert f"| `mia_forget` | 6 | {cells} |" in shown
    assert "| forget | `rouge_l_recall` | paper | 18 |" in shown
    assert main(["conventions", "base/none", "--config", str(MICRO)]) == 1
    assert "no current RWKU scores" in capsys.readouterr().err
