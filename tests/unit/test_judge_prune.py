"""The judge cache looked after: prunes beside writers, statistics, export."""

import json
import os
import threading
import time
from pathlib import Path
from typing import IO, Any

import pytest

from judge_records import found, key, record, start_writer
from unlearning_grid.errors import UserError
from unlearning_grid.ops import __main__ as ops
from unlearning_grid.remote.cache import Cache


def test_a_prune_drops_what_was_there_and_nothing_later(tmp_path):
    reader = Cache(tmp_path)
    first, second = Cache(tmp_path), Cache(tmp_path)
    first.append(record(1, text="old"))
    first.append(record(1, text="another prompt", judge="again"))
    second.append(record(2, text="bad", failure="invalid"))
    reader.refresh()
    assert reader.get([key(1)])[key(1)].text == "old"
    assert reader.failures([key(2)]) == {key(2): 1}
    assert Cache(tmp_path).prune("audit") == 2
    reader.refresh()
    assert reader.get([key(1)])[key(1)].text == "another prompt"
    assert reader.later([key(1)]) == {} and reader.failures([key(2)]) == {key(2): 0}
    first.append(record(1, text="new"))
    first.append(record(3, text="new"))
    reader.refresh()
    assert reader.get([key(3)])[key(3)].text == "new"
    states = [(r.text, state) for r, state in Cache(tmp_path).records()]
    assert sorted(states) == sorted(
        [
            ("old", "pruned"),
            ("bad", "pruned"),
            ("another prompt", "served"),
            ("new", "duplicate"),
            ("new", "served"),
        ]
    )
    assert Cache(tmp_path).prune("audit") == 2  # again: what came since


SAME = {"key_variable": "OTHER_KEY", "prompt_name": "copy/judge"}
OTHER = [
    {"model": "n"},
    {"base_url": "$JUDGE_URL/"},
    {"temperature": 0.0},
    {"prompt": "Judge it well."},
]


@pytest.mark.parametrize("pruned", ["audit", "second"])
@pytest.mark.parametrize("first", ["audit", "second"])
def test_all_that_an_entry_was_answered_is_asked_again_whoever_had_asked(
    server, ask, monkeypatch, tmp_path, first, pruned
):
    """Two entries would send the same; each asked some of it, and was served the rest."""
    monkeypatch.setenv("OTHER_KEY", "x")
    entries: dict[str, Any] = {"audit": {}, "second": {"name": "second", **SAME}}
    then = "second" if first == "audit" else "audit"
    ask(1, 2, 3, **entries[first])
    ask(3, 4, **entries[then])
    assert len(server.asked) == 4
    assert Cache(tmp_path / "cache").prune(pruned) == 4
    ask(1, 2, 3, 4, **entries[pruned])
    assert len(server.asked) == 8


@pytest.mark.parametrize("changes", OTHER, ids=lambda changes: next(iter(changes)))
def test_what_an_entry_asks_otherwise_is_not_dropped(server, ask, tmp_path, changes):
    ask(1, 2)
    ask(1, 2, **{"name": "second", **changes})
    assert len(server.asked) == 4
    assert Cache(tmp_path / "cache").prune("audit") == 2
    ask(1, 2, **{"name": "second", **changes})
    assert len(server.asked) == 4
    ask(1, 2)
    assert len(server.asked) == 6


def test_a_prune_during_writing_drops_all_before_and_nothing_after(tmp_path):
    writers = [start_writer(tmp_path, 10**6 * n, 10**6 * (n + 1)) for n in range(3)]
    said: list[list[int]] = []  # number, and when its record was begun and was kept

    def listen(stream: IO[str]) -> None:
        for line in stream:
            if line.endswith("\n"):  # a kill may cut the last one
                said.append([int(word) for word in line.split()])

    threads = [threading.Thread(target=listen, args=(w.stdout,)) for w in writers]
    for thread in threads:
        thread.start()
    while len({number // 10**6 for number, *_ in said}) < 3 or len(said) < 200:
        time.sleep(0.01)
    began = time.monotonic_ns()
    Cache(tmp_path).prune("audit")
    ended = time.monotonic_ns()
    while sum(start > ended for _, start, _ in list(said)) < 200:
        time.sleep(0.01)
    for writer in writers:
        writer.kill()
        writer.wait()
    for thread in threads:
        thread.join()
    early = [number for number, _, kept_at in said if kept_at < began]
    late = [number for number, start, _ in said if start > ended]
    assert len(early) > 50 and found(tmp_path, *early) == {}
    assert len(late) >= 200 and len(found(tmp_path, *late)) == len(late)


def test_a_tombstone_that_is_none_is_left_out(tmp_path):
    Cache(tmp_path).append(record(1))
    (tmp_path / "x.prune").write_text('{"judge": "au')
    assert list(found(tmp_path, 1)) == [1]


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    cache = Cache(tmp_path / "results" / "judge_cache")
    for number in range(5):
        cache.append(record(number))
    cache.append(record(9, text="half \ud800", judge="teacher"))
    cache.append(record(10, text=None, failure="refused", detail="no"))
    return tmp_path


def test_commands_show_export_and_prune(filled, capsys):
    def run(*words: str) -> str:
        assert ops.main(["judge-cache", *words, "--directory", str(filled)]) == 0
        return capsys.readouterr().out

    here = os.getcwd()
    try:
        shown = run("stats")
        assert "7 records in 1 file(s)" in shown and "0 damaged line(s)" in shown
        (audit,) = [line for line in shown.splitlines() if line.startswith("audit")]
        assert audit.split()[:6] == ["audit", "m", "abababab", "5", "1", "0"]
        import pyarrow.parquet as pq

        target = filled / "cache.parquet"
        assert "7 records" in run("export", str(target))
        table = pq.read_table(target).to_pylist()
        assert [row["text"] for row in table[5:6]] == ["half ?"]
        assert table[6]["failure"] == "refused" and table[6]["state"] == "failed"
        assert json.loads(table[0]["decoding"]) == {"effort": "low"}
        assert table[0]["input_tokens"] == 10 and table[0]["time"].year >= 2024
        assert "6 records for judge audit dropped" in run("prune", "audit")
        assert found(filled / "results" / "judge_cache", *range(5), 9) == {9: "half \ud800"}
        assert ops.main(["judge-cache", "prune", "nobody", "--directory", str(filled)]) == 1
        assert "no record of judge nobody" in capsys.readouterr().err
    finally:
        os.chdir(here)


def test_commands_say_when_there_is_no_cache(tmp_path):
    from unlearning_grid.ops.judge_cache import statistics

    with pytest.raises(UserError, match="no judge cache at"):
        statistics(tmp_path / "none")
