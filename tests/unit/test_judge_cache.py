"""The judge cache: kills at any byte, many writers, duplicates, and what others damaged."""

import os
import signal
import threading
import time

import pytest

from judge_records import found, key, record, segments, start_writer
from unlearning_grid.remote.cache import Cache, open_cache


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
