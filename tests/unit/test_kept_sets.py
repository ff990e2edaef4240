"""A kept set is redone as soon as anything that it depends on changes, and only then."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from support import real_manifest
from unlearning_grid.runtime.job import Job
from unlearning_grid.runtime.kept import kept_table
from unlearning_grid.rwku import likelihood
from unlearning_grid.spec.canonical import digest

ROW = {
    "config": "c",
    "prompt_id": "c-000",
    "question": "q",
    "rendered": "r",
    "ids": [1, 2],
    "answer": "a",
    "truncated": False,
    "candidates": [3, 4],
    "choices": ["x", "y"],
    "choice_ids": [[5], [6]],
}
CHANGED = {
    "prompt_id": "c-001",
    "question": "q2",
    "rendered": "r2",
    "ids": [1, 3],
    "candidates": [4, 3],
    "choices": ["y", "x"],
    "choice_ids": [[5], [7]],
}


def job(folder: Path, **changes: Any) -> Job:
    """A job whose every RWKU set has one row."""
    prompts = folder / "prompts"
    prompts.mkdir(parents=True)
    for name in ("mia", "general", "truthfulness"):
        pd.DataFrame([ROW | changes]).to_parquet(prompts / f"rwku-{name}.parquet")
    sets = dict.fromkeys(("rwku-mia", "rwku-general", "rwku-truthfulness"), {"max_prompts": None})
    settings = {"sets": sets, "batch_size": None, "model": {}}
    return Job(
        spec={"settings": settings, "code": "c", "env": "e", "cell": {}},
        inputs={"prompts": real_manifest(folder, "prompts")},
        outputs={n: folder / f"{n}.parquet" for n in ("mia", "general", "truthfulness")},
        work=folder / "work" / "key",
    )


def identities(made: Job, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Digest of what each set of likelihoods says that it depends on; nothing is computed."""
    seen: dict[str, str] = {}

    def record(_: Job, name: str, identity: Any, make: Any) -> Any:
        seen[name] = digest(identity)
        return pd.DataFrame({"x": [1]})

    monkeypatch.setattr(likelihood, "kept_table", record)
    likelihood.score(made)
    return seen


@pytest.mark.parametrize("column", CHANGED)
def test_every_column_that_a_likelihood_rests_on_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    before = identities(job(tmp_path / "a"), monkeypatch)
    same = identities(job(tmp_path / "b"), monkeypatch)
    changed = job(tmp_path / "c", **{column: CHANGED[column]})
    after = identities(changed, monkeypatch)
    assert before == same and set(before) == {"mia", "general", "truthfulness"}
    assert all(before[name] != after[name] for name in before)


def test_a_table_is_made_once_and_the_older_one_deleted(tmp_path: Path) -> None:
    made = job(tmp_path)
    made.work.mkdir(parents=True)
    calls: list[int] = []

    def make(value: int) -> Any:
        calls.append(value)
        return pd.DataFrame({"x": [value]})

    assert kept_table(made, "a", {"v": 1}, lambda: make(1))["x"].tolist() == [1]
    assert kept_table(made, "a", {"v": 1}, lambda: make(2))["x"].tolist() == [1]
    kept_table(made, "a-b", {"v": 1}, lambda: make(3))
    assert kept_table(made, "a", {"v": 2}, lambda: make(4))["x"].tolist() == [4]
    assert calls == [1, 3, 4]
    names = sorted(path.name.rsplit("-", 1)[0] for path in made.kept.iterdir())
    assert names == ["a", "a-b"]
    made.spec["code"] = "other"  # type: ignore[index]
    assert kept_table(made, "a", {"v": 2}, lambda: make(5))["x"].tolist() == [5]
