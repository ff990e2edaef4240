"""A server that speaks both of OpenAI's APIs and fails as told.

server = JudgeServer()
server.script = [Answer(status=429), Answer()]      # for the first requests, in order
server.respond = lambda asked: Answer(text="...")   # for all others
server.asked                                        # what came, with the time it came
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from unlearning_grid.remote.cache import Cache
from unlearning_grid.remote.records import Record
from unlearning_grid.remote.transport import Patience

KEY = "sk-very-secret-1234"
FAST = Patience(
    attempts=3,
    total=5.0,
    first_wait=0.01,
    longest_wait=0.02,
    read_timeout=10.0,
    connect_timeout=2.0,
)


@dataclass
class Answer:
    """One reply of the server.

    Attributes:
        text: what the model says; None for what `server.say` makes of the request.
        finish: stop, length, content_filter or anything else, in the words of chat completions.
        refusal: text of a refusal part.
        error: body of an error, sent as {"error": ...} with `status`.
        raw: whole body in place of a reply's JSON.
        cut: bytes of the HTTP reply's body after which the connection is closed.
        delay: seconds before anything is sent.
    """

    text: str | None = None
    finish: str = "stop"
    refusal: str | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    error: Any = None
    raw: bytes | None = None
    cut: int | None = None
    delay: float = 0.0
    usage: tuple[int, int, int, int] = (100, 20, 5, 50)  # input, output, reasoning, cached


@dataclass
class Asked:
    """One request that came: which API, its body, the data in its user turn, when, who asked."""

    api: str
    body: dict[str, Any]
    data: dict[str, Any]
    time: float
    key: str
    before: int  # how often the same user turn had come before

    @property
    def system(self) -> str:
        if self.api == "responses":
            return self.body["instructions"]
        return self.body["messages"][0]["content"]

    @property
    def user(self) -> str:
        return (
            self.body["input"] if self.api == "responses" else self.body["messages"][1]["content"]
        )


class JudgeServer:
    """Listens on a free port of this machine until `close`."""

    def __init__(self, port: int = 0, handler: type["_Handler"] | None = None) -> None:
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.reset()
        bound: Any = type("Handler", (handler or _Handler,), {"outer": self})
        self.http = _Http(("127.0.0.1", port), bound)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def reset(self) -> None:
        """Forget what came and what was told; answers that are held back are never sent."""
        self._closing.set()
        self._closing = threading.Event()
        self.asked: list[Asked] = []
        self.script: list[Answer] = []
        self.respond: Callable[[Asked], Answer] = lambda asked: Answer()
        self.say: Callable[[Asked], str] = lambda asked: "text"
        self.open = self.most_open = 0
        self.remember = True

    def close(self) -> None:
        self._closing.set()
        self.http.shutdown()
        self.http.server_close()

    def take(self, api: str, body: dict[str, Any], key: str) -> tuple[Asked, Answer]:
        """Note a request and choose its answer."""
        asked = Asked(api, body, {}, time.monotonic(), key, 0)
        asked.data = json.loads(asked.user)
        with self._lock:
            if self.remember:
                asked.before = sum(other.user == asked.user for other in self.asked)
                self.asked.append(asked)
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            scripted = self.script.pop(0) if self.script else None
        return asked, scripted or self.respond(asked)

    def done(self) -> None:
        """Note that a reply is out."""
        with self._lock:
            self.open -= 1

    def body(self, asked: Asked, answer: Answer) -> bytes:
        """Body of the HTTP reply."""
        if answer.raw is not None:
            return answer.raw
        if answer.error is not None:
            return json.dumps({"error": answer.error}).encode()
        if answer.status >= 300:
            return json.dumps({"error": {"message": f"status {answer.status}"}}).encode()
        text = self.say(asked) if answer.text is None else answer.text
        make = _response if asked.api == "responses" else _completion
        return json.dumps(make(text, answer)).encode()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news here."""


class _Handler(BaseHTTPRequestHandler):
    outer: JudgeServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        api = "responses" if self.path.endswith("/responses") else "chat"
        key = self.headers["Authorization"].removeprefix("Bearer ")
        closing = self.outer._closing
        asked, answer = self.outer.take(api, body, key)
        if answer.delay and closing.wait(answer.delay):
            self.close_connection = True
            return
        data = self.outer.body(asked, answer)
        self.outer.done()
        self._reply(answer, data)

    def _reply(self, answer: Answer, data: bytes) -> None:
        if answer.cut == 0:
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data if answer.cut is None else data[: answer.cut])
        if answer.cut is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _completion(text: str, answer: Answer) -> dict[str, Any]:
    sent, written, reasoning, cached = answer.usage
    content = None if answer.refusal else text
    message = {"role": "assistant", "content": content, "refusal": answer.refusal}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": answer.finish}],
        "usage": {
            "prompt_tokens": sent,
            "completion_tokens": written,
            "total_tokens": sent + written,
            "completion_tokens_details": {"reasoning_tokens": reasoning},
            "prompt_tokens_details": {"cached_tokens": cached},
        },
    }


def _response(text: str, answer: Answer) -> dict[str, Any]:
    sent, written, reasoning, cached = answer.usage
    part = {"type": "output_text", "text": text, "annotations": []}
    if answer.refusal:
        part = {"type": "refusal", "refusal": answer.refusal}
    message = {"type": "message", "id": "m", "role": "assistant", "content": [part]}
    reason = {"length": "max_output_tokens", "stop": None}.get(answer.finish, answer.finish)
    return {
        "id": "1",
        "object": "response",
        "created_at": 0,
        "model": "m",
        "error": None,
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "output": [{"type": "reasoning", "id": "r", "summary": []}, message],
        "usage": {
            "input_tokens": sent,
            "output_tokens": written,
            "total_tokens": sent + written,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "input_tokens_details": {"cached_tokens": cached},
        },
    }


def judge_block(api: str = "responses", **changes: Any) -> dict[str, Any]:
    """A `judge` block as it stands in a spec; the server's address is in $JUDGE_URL."""
    return {
        "provider": "openai",
        "name": "audit",
        "api": api,
        "structured": "json_schema",
        "model": "m",
        "base_url": "$JUDGE_URL",
        "key_variable": "JUDGE_KEY",
        "effort": None,
        "temperature": None,
        "max_output_tokens": None,
        "prompt": "Judge it.",
        "prompt_name": "test/judge",
        **changes,
    }


def numbered_verdict(number: int, fields: tuple[str, ...]) -> dict[str, bool]:
    """A verdict that tells which completion it belongs to: the number's bits."""
    return {name: bool(number >> index & 1) for index, name in enumerate(fields)}


def kept(folder: Path) -> list[Record]:
    """Everything in the judge cache of a test's folder."""
    return [record for record, _ in Cache(folder / "cache").records()]
