"""Rows that are kept one by one: what a kill leaves, what an edit redoes, what it must not."""

import json
from pathlib import Path
from typing import Any

import pytest

from unlearning_grid.runtime.job import Job
from unlearning_grid.runtime.kept import Keep, kept_rows


def job(folder: Path, **spec: Any) -> Job:
    work = folder / "work" / "key"
    work.mkdir(parents=True, exist_ok=True)
    facts = {"settings": {"model": {}}, "code": "c", "env": "e", "cell": {}} | spec
    return Job(spec=facts, inputs={}, outputs={}, work=work)


class Maker:
    """Makes {"value": letter} for each place it is asked for, and remembers them."""

    def __init__(self, letters: str, stop_after: int | None = None) -> None:
        self.letters, self.stop_after = letters, stop_after
        self.asked: list[int] = []

    def __call__(self, missing: list[int], keep: Keep) -> None:
        self.asked += missing
        for number, place in enumerate(missing):
            if number == self.stop_after:
                raise KeyboardInterrupt
            keep(place, {"value": self.letters[place]})


def made(folder: Path, letters: str, maker: Maker, identity: Any = None, **spec: Any) -> str:
    rows = kept_rows(job(folder, **spec), "set-plain", identity or {"v": 1}, list(letters), maker)
    return "".join(row["value"] for row in rows)


def test_a_killed_run_goes_on_with_the_rows_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path, "abcd", Maker("abcd", stop_after=2))
    again = Maker("abcd")
    assert made(tmp_path, "abcd", again) == "abcd"
    assert again.asked == [2, 3]
    third = Maker("abcd")
    assert made(tmp_path, "abcd", third) == "abcd" and third.asked == []


def test_a_line_that_a_kill_cut_short_is_made_again(tmp_path: Path) -> None:
    made(tmp_path, "ab", Maker("ab"))
    (journal,) = job(tmp_path).kept.iterdir()
    whole = journal.read_bytes()
    for cut in range(len(whole.splitlines()[0]) + 2, len(whole)):  # within the second line
        journal.write_bytes(whole[:cut])
        again = Maker("ab")
        assert made(tmp_path, "ab", again) == "ab" and again.asked == [1]
        assert journal.read_bytes() == whole


def test_an_added_row_is_made_alone_and_a_dropped_one_stays_for_later(tmp_path: Path) -> None:
    made(tmp_path, "abc", Maker("abc"))
    longer, shorter, back = Maker("axbyc"), Maker("b"), Maker("abc")
    assert made(tmp_path, "axbyc", longer) == "axbyc" and longer.asked == [1, 3]
    assert made(tmp_path, "b", shorter) == "b" and shorter.asked == []
    assert made(tmp_path, "abc", back) == "abc" and back.asked == []


def test_equal_rows_are_made_once(tmp_path: Path) -> None:
    maker = Maker("abab")
    assert made(tmp_path, "abab", maker) == "abab"
    assert sorted(maker.asked) == [0, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"identity": {"v": 2}},
        {"code": "other"},
        {"env": "other"},
        {"settings": {"model": {"repo": "other"}}},
    ],
    ids=str,
)
def test_rows_of_another_identity_are_neither_used_nor_left(tmp_path: Path, change: Any) -> None:
    made(tmp_path, "ab", Maker("ab"))
    (before,) = job(tmp_path).kept.iterdir()
    other = kept_rows(job(tmp_path), "set", {"v": 1}, ["a"], Maker("a"))  # another part
    assert other == [{"value": "a"}]
    again = Maker("ab")
    assert made(tmp_path, "ab", again, **change) == "ab" and again.asked == [0, 1]
    assert not before.exists()
    assert len(list(job(tmp_path).kept.iterdir())) == 2


def test_a_row_that_was_not_made_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="set-plain: 1 of 2 rows were not made"):
        made(tmp_path, "ab", lambda missing, keep: keep(0, {"value": "a"}))  # type: ignore[arg-type]


def test_rows_are_text_of_any_kind(tmp_path: Path) -> None:
    odd = {"text": 'line\nquote" \u2028 \x85 \u00e9 \U0001f600', "tokens": 3}
    kept_rows(job(tmp_path), "odd", {}, ["k"], lambda missing, keep: keep(0, odd))
    found = kept_rows(job(tmp_path), "odd", {}, ["k"], lambda missing, keep: keep(0, {}))
    assert found == [odd]


def test_who_lost_the_lease_writes_nothing(tmp_path: Path) -> None:
    class Lost:
        def check(self) -> None:
            raise RuntimeError("lost")

    mine = job(tmp_path)
    mine.lease = Lost()  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="lost"):
        kept_rows(mine, "set", {}, ["a"], Maker("a"))
    assert list(mine.kept.iterdir()) == []


def test_the_journal_is_one_object_a_line(tmp_path: Path) -> None:
    made(tmp_path, "ab", Maker("ab"))
    (journal,) = job(tmp_path).kept.iterdir()
    lines = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    assert lines == [{"key": "a", "row": {"value": "a"}}, {"key": "b", "row": {"value": "b"}}]
