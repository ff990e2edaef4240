"""A judge served inside the cluster, as those who ask it see it."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from judge_server import FAST
from judge_servers import (
    FOLDER,
    MODEL,
    Running,
    announced,
    ask,
    asked,
    files_with,
    kill,
    right,
    times_asked,
    until,
)
from modules import SCRIPTS
from unlearning_grid.errors import UserError
from unlearning_grid.remote import servers, transport
from unlearning_grid.remote.servers import Announcement, announce, folder_of, read_announcement
from unlearning_grid.runtime.job import Interrupted

STALE = Announcement("big", MODEL, "127.0.0.1", 9, "key-of-a-dead-server", "nonce")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS))
    monkeypatch.setattr(transport, "PATIENCE", replace(FAST, server=30.0))
    monkeypatch.setattr(servers, "LOOK_EVERY", 0.05)
    return tmp_path


@pytest.fixture
def start() -> Iterator[type[Running]]:
    begun: list[Running] = []

    class Begun(Running):
        def __init__(self, **options: object) -> None:
            begun.append(self)
            super().__init__(**options)  # pyright: ignore[reportArgumentType]

    yield Begun
    for running in begun:
        running.stop()


def in_thread(*numbers: int, **options: Any) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(ask(*numbers, **options)))
    thread.start()
    return thread, found


def test_a_server_is_found_and_asked_and_its_key_stays_in_one_file(start, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    start()
    key = announced().key
    assert [v.labels for v in ask(*range(8))] == right(range(8))
    assert times_asked() == {f"c{n}": 1 for n in range(8)}
    assert len(key) >= 40
    assert files_with(key) == {".judge-servers/big/announcement.json"}
    assert key not in caplog.text and key not in repr(announced())
    assert FOLDER.stat().st_mode & 0o777 == 0o700
    assert (FOLDER / "announcement.json").stat().st_mode & 0o777 == 0o600


def test_a_proxy_for_the_way_out_is_not_used_inside(start, monkeypatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    start()
    announced()
    assert [v.labels for v in ask(*range(2))] == right(range(2))


@pytest.mark.parametrize("how", ["killed", "moved"])
def test_a_server_that_goes_away_in_a_batch_costs_no_verdict(start, how) -> None:
    """Another port, another key; what was open is asked again, and nothing else."""
    first = start(delay=0.05)
    before = announced()
    thread, found = in_thread(*range(60), at_once=4)
    until(lambda: len(asked()) >= 20)
    if how == "killed":
        kill(asked()[0][0])  # is started again by itself
    else:
        first.stop()
        start()
    after = announced(other_than=before)
    assert (after.port, after.key) != (before.port, before.key) and after.nonce != before.nonce
    thread.join(30)
    assert [v.labels for v in found] == right(range(60))
    counts = times_asked()
    assert set(counts) == {f"c{n}" for n in range(60)} and max(counts.values()) <= 2
    assert sum(n == 2 for n in counts.values()) <= 4
    assert len({pid for pid, _ in asked()}) == 2


def test_a_batch_waits_for_a_server_that_is_still_in_the_queue(start, caplog) -> None:
    caplog.set_level(logging.INFO)
    thread, found = in_thread(*range(3))
    until(lambda: "waiting for server big" in caplog.text)
    assert "(none is announced), 0 of at most 0 min" in caplog.text
    assert "judge-server start big" in caplog.text
    start()
    thread.join(30)
    assert [v.labels for v in found] == right(range(3))
    assert caplog.text.count("waiting for server big") == 1, "one line a minute, not one a thread"


def test_an_announcement_of_a_dead_host_is_waited_out(start, caplog) -> None:
    caplog.set_level(logging.INFO)
    announce(STALE)
    thread, found = in_thread(*range(3))
    until(lambda: "127.0.0.1:9 is announced, and it does not answer" in caplog.text)
    start()
    thread.join(30)
    assert [v.labels for v in found] == right(range(3))


def test_a_port_that_another_server_took_is_no_wrong_key(start) -> None:
    """HTTP 401 of a stranger at the old address: look again, do not end the stage."""
    start()
    running = announced()
    announce(replace(running, key="the-key-of-an-earlier-server"))
    thread, found = in_thread(*range(3))
    time.sleep(0.3)
    assert thread.is_alive() and not found
    announce(running)
    thread.join(30)
    assert [v.labels for v in found] == right(range(3))


def test_a_text_that_ends_every_server_is_given_up_and_the_rest_is_judged(start) -> None:
    start()
    verdicts = ask(0, 1, "poison", 2, 3, at_once=1)
    assert verdicts[2].failure == "unavailable"
    assert [v.labels for v in (*verdicts[:2], *verdicts[3:])] == right(range(4))
    assert times_asked()["poison"] == transport.LOSSES


def test_when_patience_ends_it_is_an_outage(monkeypatch) -> None:
    monkeypatch.setattr(transport, "PATIENCE", replace(FAST, server=0.5))
    began = time.monotonic()
    verdicts = ask(*range(40), at_once=4)
    assert {v.failure for v in verdicts} == {"unavailable"}
    assert 0.5 <= time.monotonic() - began < 5.0, "patience counts once, not for each request"


def test_after_an_outage_a_server_that_comes_is_taken(start, monkeypatch) -> None:
    monkeypatch.setattr(transport, "PATIENCE", replace(FAST, server=0.2))
    assert {v.failure for v in ask(*range(2))} == {"unavailable"}
    start()
    announced()
    assert [v.labels for v in ask(*range(2))] == right(range(2))


def test_a_job_that_is_told_to_stop_does_not_wait_on() -> None:
    began = time.monotonic()
    with pytest.raises(Interrupted, match="0 of 3 replies"):
        ask(0, 1, 2, stop=lambda: time.monotonic() > began + 0.5)
    assert time.monotonic() - began < 3.0


def test_a_server_of_another_model_ends_the_stage(start) -> None:
    start()
    announced()
    with pytest.raises(
        UserError, match="judges.audit: server big .* serves org/judge@0123456789ab"
    ):
        ask(0, model="org/judge@ffffffffffff")
    assert not asked()


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '{"name": "big"}', "\xff"])
def test_half_an_announcement_is_none(text: str) -> None:
    announce(STALE)
    assert read_announcement("big") == STALE
    (FOLDER / "announcement.json").write_text(text, encoding="latin-1")
    assert read_announcement("big") is None


def test_an_announcement_with_wrong_kinds_is_none() -> None:
    announce(replace(STALE, port="80"))  # pyright: ignore[reportArgumentType]
    assert read_announcement("big") is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_an_announcement_that_others_can_read_is_refused(start, mode) -> None:
    start()
    announced()
    (FOLDER / "announcement.json").chmod(mode)
    with pytest.raises(UserError, match="chmod 600 .*announcement.json"):
        ask(0)
    assert not asked()


def test_a_folder_that_others_can_enter_is_refused() -> None:
    folder_of("big").chmod(0o755)
    with pytest.raises(UserError, match="chmod 700 .judge-servers/big"):
        ask(0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("which", [".", "announcement.json"])
def test_what_belongs_to_another_user_is_refused(which: str) -> None:
    announce(STALE)
    os.chown(FOLDER / which, 12345, -1)
    with pytest.raises(UserError, match="belongs to user 12345"):
        ask(0)


def test_a_link_in_place_of_an_announcement_is_refused() -> None:
    announce(STALE)
    (FOLDER / "announcement.json").rename("elsewhere.json")
    (FOLDER / "announcement.json").symlink_to(Path("elsewhere.json").absolute())
    with pytest.raises(UserError, match="announcement.json"):
        ask(0)
