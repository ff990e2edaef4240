"""Records for tests of the judge cache, and a process that writes some."""

import subprocess
import sys
import zlib
from pathlib import Path

from modules import SCRIPTS
from support import environment
from unlearning_grid.remote.cache import SEGMENT, Cache
from unlearning_grid.remote.records import Record


def key(number: int) -> str:
    return f"{number:064x}"


def record(number: int, text: str | None = None, judge: str = "audit", **changes) -> Record:
    said = f"reply {number}\n\u2028é" if text is None else text
    return Record(
        **{
            "key": key(number), "judge": judge, "model": "m", "api": "chat", "prompt": "ab" * 32,
            "entry": f"{zlib.crc32(judge.encode()):08x}",
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


WRITER = """
import sys, time
from pathlib import Path
from unlearning_grid.remote.cache import Cache
from unlearning_grid.remote.records import Record
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
