"""Judge servers of a cluster, on this machine: real processes that are started, moved and killed.

The current folder is the working directory; `asked` in it tells what came to which process.
"""

import os
import shlex
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from judge_server import judge_block, numbered_verdict
from support import ROOT
from unlearning_grid.judge.base import JudgeContext, Verdict
from unlearning_grid.judge.labels import SIX
from unlearning_grid.judge.openai import OpenAIJudge
from unlearning_grid.remote.servers import SERVERS, Announcement, read_announcement
from unlearning_grid.remote.serving import Service, serve

STAND_IN = ROOT / "tests" / "served_judge.py"
REVISION = "0123456789abcdef0123456789abcdef01234567"
MODEL = "org/judge@0123456789ab"
FOLDER = SERVERS / "big"


def command(**options: Any) -> str:
    """What starts the stand-in, for --command."""
    words = [sys.executable, str(STAND_IN), "--asked", "asked"]
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    return shlex.join(words)


def micro_with_server(path: Path) -> Path:
    """Write the micro grid with R2's judge in the cluster."""
    values = yaml.safe_load((ROOT / "config" / "micro.yaml").read_text(encoding="utf-8"))
    values["judges"]["reward"] = {
        "provider": "openai",
        "api": "chat",
        "model": "org/judge",
        "revision": REVISION,
        "base_url": "cluster:big",
        "prompt_file": "config/prompts/reworded-v1/rubric.txt",
    }
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


class Running:
    """A server in a thread of this process; `ended` says why it ended, `error` what it raised."""

    def __init__(self, idle: float = 60.0, **options: Any) -> None:
        self.service = Service(
            name="big",
            repo="org/judge",
            revision=REVISION,
            model=MODEL,
            host="127.0.0.1",
            command=options.pop("words", None) or command(**options),
            idle=idle,
            heartbeat=0.1,
            stale_after=2.0,
            every=0.05,
        )
        self.ended: str | None = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        try:
            self.ended = serve(self.service)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def stop(self) -> "Running":
        self.service.stop.set()
        return self.join()

    def join(self) -> "Running":
        self.thread.join(30)
        assert not self.thread.is_alive()
        return self


def until(true: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait for something to become true; its value."""
    end = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return value


def announced(other_than: Announcement | None = None) -> Announcement:
    """The announcement, once there is one (other than an earlier one)."""

    def look() -> Announcement | None:
        found = read_announcement("big")
        return found if found and found != other_than else None

    return until(look)


def asked() -> list[tuple[int, str]]:
    """(process, completion) of each request that came to any server, in order."""
    path = Path("asked")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [(int(pid), completion) for pid, completion in (line.split() for line in lines)]


def times_asked() -> Counter[str]:
    """How often each completion was asked for."""
    return Counter(completion for _, completion in asked())


def kill(pid: int) -> None:
    """End a server as a crash does."""
    os.kill(pid, signal.SIGKILL)


def ask(*completions: str | int, at_once: int = 4, stop: Any = None, **changes: Any) -> list[Any]:
    """Verdicts on completions, asked as an audit asks them; numbers stand for "c<number>"."""
    context = JudgeContext(
        "Bruce Lee", requests_at_once=at_once, cache=Path("cache"), stop_requested=stop or no
    )
    facts = {"base_url": "cluster:big", "model": MODEL, "key_variable": "UNSET", **changes}
    judge = OpenAIJudge(judge_block("chat", **facts), context)
    texts = [f"c{c}" if isinstance(c, int) else c for c in completions]
    return judge.audit([("Who?", text) for text in texts], SIX, [None] * len(texts))


def no() -> bool:
    return False


def right(numbers: range) -> list[Verdict | dict[str, bool]]:
    """Labels of these completions."""
    return [numbered_verdict(n, SIX) for n in numbers]


def files_with(text: str) -> set[str]:
    """Files below the working directory that hold a text, whatever else they hold."""
    return {
        path.as_posix()
        for path in Path().rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    }
