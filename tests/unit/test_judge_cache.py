"""The judge cache: kills at any byte, many writers, prunes, duplicates, and what others damaged."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

import pytest

from modules import SCRIPTS
from support import environment
from unlearning_grid.errors import UserError
from unlearning_grid.ops import __main__ as ops
from unlearning_grid.remote.cache import SEGMENT, Cache, Record, open_cache


def key(number: int) -> str:
    return f"{number:064x}"


def record(number: int, text: str | None = None, judge: str = "audit", **changes) -> Record:
    said = f"reply {number}\n\u2028é" if text is None else text
    return Record(
        **{
            "key": key(number), "judge": judge, "model": "m", "api": "chat", "prompt": "ab" * 32,
            "replicate": 0, "text": said, "decoding": {"effort": "low"},
            "usage": {"input": 10, "output": 2, "reasoning": 0, "cached": None}, **changes,
        }
    )  # fmt: skip


def found(folder: Path, *numbers: int) -> dict[int, str | None]:
    """Texts that a fresh reader finds, by number."""
    cache = Cache(folder)
    cache.refresh()
    return {int(k, 16): r.text for k, r in sorted(cache.get(map(key, numbers)).items())}


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SEGMENT}"))


def test_what_is_kept_comes_back_whole(tmp_path):
    writer = Cache(tmp_path)
    made = record(7, detail="x", finish_reason="stop", latency=1.5, attempts=3, time_ns=5)
    assert writer.append(made)
    reader = Cache(tmp_path)
    reader.refresh()
    assert reader.get([key(7), key(8)]) == {key(7): made}


def test_an_absent_folder_is_an_empty_cache(tmp_path):
    cache = Cache(tmp_path / "none")
    cache.refresh()
    assert cache.get([key(1)]) == {}
    assert not (tmp_path / "none").exists()


def test_failures_are_kept_and_never_served(tmp_path):
    cache = Cache(tmp_path)
    cache.append(record(1, failure="refused"))
    assert found(tmp_path, 1) == {}
    cache.append(record(1, text="later"))
    assert found(tmp_path, 1) == {1: "later"}
    assert [state for _, state in Cache(tmp_path).records()] == ["failed", "served"]


def test_a_reader_takes_in_grown_and_new_files_only(tmp_path):
    one, other, reader = Cache(tmp_path), Cache(tmp_path), Cache(tmp_path)
    one.append(record(1))
    reader.refresh()
    assert reader.get([key(1), key(2)]).keys() == {key(1)}
    one.append(record(2))
    other.append(record(3))
    assert reader.get([key(2), key(3)]) == {}
    read: list[int] = []
    lines = reader._read_lines
    reader._read_lines = lambda name, offset, end: (
        read.append(end - offset) or lines(name, offset, end)
    )
    reader.refresh()
    assert reader.get([key(2), key(3)]).keys() == {key(2), key(3)}
    size = segments(tmp_path)[0].stat().st_size
    assert sum(read) <= 2 * size
    read.clear()
    reader.refresh()
    assert read == []


def test_of_duplicates_the_earliest_is_served_whoever_reads_first(tmp_path):
    writers = [Cache(tmp_path) for _ in range(6)]
    early = Cache(tmp_path)
    for number, writer in enumerate(writers):
        writer.append(record(1, text=f"at {5 - number}", time_ns=10**18 + 5 - number))
        early.refresh()
    assert found(tmp_path, 1) == {1: "at 0"}
    assert early.get([key(1)])[key(1)].text == "at 0"
    same = [Cache(tmp_path / "same") for _ in range(6)]
    for number, writer in enumerate(same):
        writer.append(record(1, text=str(number), time_ns=10**18))
    first = segments(tmp_path / "same")[0]
    served = found(tmp_path / "same", 1)[1]
    assert f'"text":"{served}"'.encode() in first.read_bytes()


def test_a_file_cut_at_any_byte_loses_at_most_its_last_record(tmp_path):
    writer = Cache(tmp_path / "whole")
    writer.append(record(1, text="a"))
    writer.append(record(2, text="b"))
    (path,) = segments(tmp_path / "whole")
    data = path.read_bytes()
    first = data.index(b"\n") + 1
    folder = tmp_path / "cut"
    folder.mkdir()
    for size in range(len(data) + 1):
        (folder / path.name).write_bytes(data[:size])
        expected = ([1] if size >= first else []) + ([2] if size == len(data) else [])
        assert list(found(folder, 1, 2)) == expected, size


def test_a_write_cut_at_any_byte_spoils_only_itself(tmp_path):
    cache = Cache(tmp_path / "whole")
    cache.append(record(1, text="a"))
    line = segments(tmp_path / "whole")[0].read_bytes()
    for size in range(0, len(line), 7):
        folder = tmp_path / str(size)
        writer = Cache(folder)
        writer.append(record(1, text="a"))
        assert writer._handle is not None
        os.write(writer._handle, line[:size])  # what a full disk leaves of a record
        writer._torn = True
        writer.append(record(2))
        assert list(found(folder, 1, 2)) == [1, 2]
        reader = Cache(folder)
        reader.refresh()
        assert reader.size["skipped"] == (0 < size < len(line) - 1)  # the end comes later


@pytest.mark.parametrize(
    "damage",
    [
        b"garbage\n",
        b"\x00" * 4096 + b"\n",
        b"\xff\xfe\n\n\n",
        b"a" * 200 + b"\n",
        key(9).encode() + b" 1234567890123456789 01234567 + 00000000 {}\n",
    ],
)
def test_garbage_is_skipped_and_counted(tmp_path, damage):
    writer = Cache(tmp_path)
    writer.append(record(1))
    (path,) = segments(tmp_path)
    path.write_bytes(damage + path.read_bytes() + damage + b"no end")
    reader = Cache(tmp_path)
    reader.refresh()
    assert reader.get([key(1), key(9)]).keys() == {key(1)}
    assert reader.size["skipped"] == 3


def test_one_flipped_byte_anywhere_drops_the_record_never_changes_it(tmp_path):
    writer = Cache(tmp_path)
    writer.append(record(1, text="a"))
    (path,) = segments(tmp_path)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert found(tmp_path, 1) in ({}, {1: "a"}), place  # "a": the case of a checksum's digit


def test_files_that_vanish_or_shrink_are_forgotten(tmp_path):
    one, other, reader = Cache(tmp_path), Cache(tmp_path), Cache(tmp_path)
    one.append(record(1))
    other.append(record(2))
    reader.refresh()
    where = {p: 1 if key(1).encode() in p.read_bytes() else 2 for p in segments(tmp_path)}
    (gone,) = (path for path, number in where.items() if number == 1)
    gone.unlink()
    assert reader.get([key(1), key(2)]).keys() == {key(2)}  # also before the next look
    reader.refresh()
    assert reader.get([key(1), key(2)]).keys() == {key(2)}
    (cut,) = segments(tmp_path)
    os.truncate(cut, 10)
    reader.refresh()
    assert reader.get([key(2)]) == {}


def test_a_full_disk_costs_a_warning_not_a_run(tmp_path, caplog, monkeypatch):
    cache = Cache(tmp_path)
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr(cache, "_new_file", lambda: full)
    assert [cache.append(record(n)) for n in range(3)] == [False] * 3
    assert len(caplog.records) == 1
    assert "cannot be kept ([Errno 28] No space left" in caplog.text
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert not Cache(blocked / "cache").append(record(1))


def test_a_forked_process_writes_into_a_file_of_its_own(tmp_path):
    cache = Cache(tmp_path)
    cache.append(record(1))
    with cache._writing, cache._reading:  # as another thread might hold them at this moment
        child = os.fork()
        if child == 0:
            cache.refresh()
            os._exit(0 if cache.append(record(2)) and key(1) in cache.get([key(1)]) else 1)
    assert os.waitpid(child, 0)[1] == 0
    cache.append(record(3))
    assert list(found(tmp_path, 1, 2, 3)) == [1, 2, 3]
    assert len(segments(tmp_path)) == 2


def test_threads_share_one_cache(tmp_path):
    cache = open_cache(tmp_path)
    assert open_cache(tmp_path) is cache

    def work(first: int) -> None:
        for number in range(first, first + 100):
            cache.append(record(number))
            cache.refresh()

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found(tmp_path, *range(800))) == 800
    assert len(segments(tmp_path)) == 1


# --- processes -------------------------------------------------------------------------------

WRITER = """
import sys, time
from pathlib import Path
from unlearning_grid.remote.cache import Cache, Record
folder, first, last, text = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
cache = Cache(folder)
for number in range(first, last):
    began = time.monotonic_ns()
    cache.append(Record(f"{number:064x}", "audit", "m", "chat", "", 0, text + str(number)))
    print(number, began, time.monotonic_ns(), flush=True)
"""


def start_writer(folder: Path, first: int, last: int, text: str = "x") -> subprocess.Popen[str]:
    words = [sys.executable, "-c", WRITER, str(folder), str(first), str(last), text]
    env = environment() | {"PYTHONPATH": str(SCRIPTS)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env)


def test_a_writer_killed_at_any_moment_loses_nothing_that_it_had_kept(tmp_path):
    for round_ in range(6):
        writer = start_writer(tmp_path, 10**6 * round_, 10**6 * (round_ + 1), "long " * 200)
        assert writer.stdout
        said = [int(writer.stdout.readline().split()[0])]
        time.sleep(0.013 * round_)
        writer.send_signal(signal.SIGKILL)
        said += [int(line.split()[0]) for line in writer.stdout.read().split("\n")[:-1]]
        writer.wait()
        texts = found(tmp_path, *said)
        assert texts == {number: "long " * 200 + str(number) for number in said}


def test_32_processes_write_at_once_and_all_is_read_back(tmp_path):
    writers = [start_writer(tmp_path, 1000 * n, 1000 * n + 200) for n in range(32)]
    reader = Cache(tmp_path)
    while any(writer.poll() is None for writer in writers):
        reader.refresh()
        for k, r in reader.get(key(1000 * n) for n in range(32)).items():
            assert r.text == f"x{int(k, 16)}"
        time.sleep(0.05)
    assert [writer.returncode for writer in writers] == [0] * 32
    numbers = [1000 * n + i for n in range(32) for i in range(200)]
    assert found(tmp_path, *numbers) == {number: f"x{number}" for number in numbers}
    reader.refresh()
    assert len(reader.get(map(key, numbers))) == 6400
    assert len(segments(tmp_path)) == 32


# --- prune, stats, export --------------------------------------------------------------------


def test_a_prune_drops_one_judge_and_lets_duplicates_of_others_count(tmp_path):
    reader = Cache(tmp_path)
    first, second = Cache(tmp_path), Cache(tmp_path)
    first.append(record(1, text="old"))
    first.append(record(1, text="same question, other entry", judge="again"))
    second.append(record(2, text="bad", failure="invalid"))
    reader.refresh()
    assert reader.get([key(1)])[key(1)].text == "old"
    assert Cache(tmp_path).prune("audit") == 2
    reader.refresh()
    assert reader.get([key(1)])[key(1)].text == "same question, other entry"
    first.append(record(1, text="new"))
    first.append(record(3, text="new"))
    reader.refresh()
    assert reader.get([key(3)])[key(3)].text == "new"
    states = [(r.text, state) for r, state in Cache(tmp_path).records()]
    assert sorted(states) == sorted(
        [
            ("old", "pruned"),
            ("bad", "pruned"),
            ("same question, other entry", "served"),
            ("new", "duplicate"),
            ("new", "served"),
        ]
    )
    assert Cache(tmp_path).prune("audit") == 2  # again: what came since


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
        assert "6 records of judge audit dropped" in run("prune", "audit")
        assert found(filled / "results" / "judge_cache", *range(5), 9) == {9: "half \ud800"}
        assert ops.main(["judge-cache", "prune", "nobody", "--directory", str(filled)]) == 1
        assert "no record of judge nobody" in capsys.readouterr().err
    finally:
        os.chdir(here)


def test_commands_say_when_there_is_no_cache(tmp_path):
    from unlearning_grid.ops.judge_cache import statistics

    with pytest.raises(UserError, match="no judge cache at"):
        statistics(tmp_path / "none")
