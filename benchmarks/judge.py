"""What the judge client costs: slots kept busy, a cached audit, and a cache of half a million.

    .venv/bin/python benchmarks/judge.py [records]

1. 64 requests to a server that takes 0.2 s, 16 at a time, against the ideal of 4 x 0.2 s;
2. an audit of 20,000 rows whose replies are all in the cache, against asking a local server that
   answers at once;
3. opening a cache of 500,000 records from 8 writers, and looking up 10,000 of them.
Servers run in a process of their own, as real ones do.
"""

import json
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "workflow" / "scripts"), str(ROOT / "tests")]

from judge_server import Answer, JudgeServer, judge_block  # noqa: E402
from unlearning_grid.judge.base import JudgeContext  # noqa: E402
from unlearning_grid.judge.labels import SIX  # noqa: E402
from unlearning_grid.judge.openai import OpenAIJudge  # noqa: E402
from unlearning_grid.remote.cache import Cache  # noqa: E402
from unlearning_grid.remote.records import Record  # noqa: E402

VERDICT = json.dumps(dict.fromkeys(SIX, False))
PROMPT = (ROOT / "config/prompts/reworded-v1/audit-six.txt").read_text(encoding="utf-8")
ROWS = 20_000


def serve(delay: float, address: "multiprocessing.Queue[str]") -> None:
    server = JudgeServer()
    server.respond = lambda asked: Answer(text=VERDICT, delay=delay)
    server.remember = False
    address.put(server.url)
    time.sleep(3600)


@contextmanager
def server(delay: float) -> Iterator[None]:
    """A judge server in $JUDGE_URL."""
    address: multiprocessing.Queue[str] = multiprocessing.Queue()
    process = multiprocessing.Process(target=serve, args=(delay, address), daemon=True)
    process.start()
    os.environ |= {"JUDGE_URL": address.get(), "JUDGE_KEY": "x"}
    try:
        yield
    finally:
        process.kill()


def audit(rows: int, cache: Path | None) -> float:
    """Seconds of one audit with a client of its own."""
    judge = OpenAIJudge(judge_block("chat", prompt=PROMPT), JudgeContext("Bruce Lee", cache=cache))
    pairs = [("Who was it?", f"completion {n} " + "of some length " * 20) for n in range(rows)]
    return timed(lambda: check(judge.audit(pairs, SIX, [None] * rows)))


def check(verdicts: list) -> None:
    assert all(verdict.labels for verdict in verdicts)


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def fill(folder: Path, records: int, writers: int = 8) -> None:
    """Write records as `writers` processes would."""
    caches = [Cache(folder) for _ in range(writers)]
    for number in range(records):
        caches[number % writers].append(
            Record(
                key=f"{number:064x}", judge="audit", model="some-model", api="responses",
                prompt="ab" * 32, replicate=0, text=VERDICT, decoding={"effort": "low"},
                finish_reason="stop", latency=1.234,
                usage={"input": 700, "output": 60, "reasoning": 0, "cached": 512},
            )
        )  # fmt: skip


def main() -> None:
    logging.getLogger("unlearning_grid").setLevel(logging.ERROR)
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with server(0.2):
            audit(16, None)  # imports and connections
            slow = min(audit(64, None) for _ in range(3))
        with server(0.0):
            audit(16, None)
            asking = audit(ROWS, folder / "audit")
        cached = min(audit(ROWS, folder / "audit") for _ in range(3))
        fill(folder / "large", records)
        size = sum(path.stat().st_size for path in (folder / "large").iterdir())
        cache = Cache(folder / "large")
        before = psutil.Process().memory_info().rss
        index = timed(cache.refresh)
        memory = psutil.Process().memory_info().rss - before
        keys = [f"{number * 7919 % records:064x}" for number in range(10_000)]
        lookups = timed(lambda: cache.get(keys))
        assert len(cache.get(keys)) == len(set(keys))
        again = timed(cache.refresh)
    print(f"64 requests, 0.2 s server, 16 slots   {slow:6.2f} s   {slow / 0.8:5.2f} x the ideal")
    print(f"{ROWS} rows, all cached              {cached:6.2f} s")
    print(f"{ROWS} rows, asked at 0 s            {asking:6.2f} s   {asking / cached:5.1f} x cached")
    print(f"index of {records} records           {index:6.2f} s   {size / 2**20:.0f} MiB")
    print(f"  its memory                          {memory / 2**20:6.0f} MiB")
    print(f"10000 lookups                         {lookups:6.2f} s")
    print(f"next look, nothing new                {again * 1000:6.2f} ms")


if __name__ == "__main__":
    main()
