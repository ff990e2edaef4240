"""A hub on localhost: the part of its API that downloads use, over real HTTP.

    with Hub() as hub:
        commit = hub.push("model", "some/model", {"config.json": b"{}"})
        subprocess.run(..., env=os.environ | hub.environment(cache))

Repositories are folders in memory, a commit each. Faults are set per repository or file.
"""

import hashlib
import json
import os
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

Files = dict[str, bytes]

_API = re.compile(r"/api/(model|dataset)s/([^/]+/[^/]+)(?:/(revision|tree)/([^/?]+))?(?:\?.*)?")
_FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/([^?]+)(?:\?.*)?")


@dataclass
class Hub:
    """Serves repositories until it is closed.

    Attributes:
        repos: (kind, name) -> commits, oldest first: (commit, files).
        refused: name -> (status, X-Error-Code) of every answer about it.
        stalled: file name -> bytes after which an answer stops until the hub is closed.
        cut: file name -> bytes after which the connection breaks, once.
        pretended: file name -> size that listings and heads claim.
        requests: method, path and Range of every request.
    """

    repos: dict[tuple[str, str], list[tuple[str, Files]]] = field(default_factory=dict)
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    stalled: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    pretended: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Hub":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()

    def push(self, kind: str, name: str, files: Files) -> str:
        """A new commit of a repository; returns its name."""
        commits = self.repos.setdefault((kind, name), [])
        commit = hashlib.sha1(f"{kind} {name} {len(commits)}".encode()).hexdigest()
        commits.append((commit, files))
        return commit

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def environment(self, home: Path) -> dict[str, str]:
        """What a process needs to use this hub and a cache of its own."""
        return {
            "HF_ENDPOINT": self.address,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1",
        }

    def files(self, kind: str, name: str, revision: str) -> tuple[str, Files] | None:
        """Commit and files at a revision, `main` or a commit."""
        commits = self.repos.get((kind, name), [])
        if revision == "main" and commits:
            return commits[-1]
        return next((entry for entry in commits if entry[0] == revision), None)


def folder_files(folder: Path) -> Files:
    """Content of every file below a folder, by relative name."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def data_set(rows: dict[str, list[dict]]) -> Files:
    """Files of a data set laid out as RWKU's: a card that names one JSON file for each config."""
    from unlearning_grid.data.rwku import RWKU_CONFIGS

    blocks = [
        {
            "config_name": name,
            "data_files": [{"split": RWKU_CONFIGS[name], "path": [f"All/of_{name}.json"]}],
        }
        for name in rows
    ]
    files = {f"All/of_{name}.json": json.dumps(rows[name]).encode() for name in rows}
    card = f"---\n{yaml.safe_dump({'license': 'cc-by-4.0', 'configs': blocks})}---\n# Rows\n"
    return {**files, "README.md": card.encode(), "All/not_read.json": b"[" + b" " * 5000 + b"]"}


def use(monkeypatch: Any, address: str, cache: Path) -> None:
    """Have this process take an address for the hub, with a cache of its own."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr(
        "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.requests.append((self.command, self.path, self.headers.get("Range")))
            if found := _API.fullmatch(self.path):
                self._api(*found.groups())
            elif found := _FILE.fullmatch(self.path):
                datasets, name, revision, file = found.groups()
                self._file("dataset" if datasets else "model", name, revision, file)
            else:
                self._error(404, "")

        do_HEAD = do_GET

        def _api(self, kind: str, name: str, what: str | None, revision: str | None) -> None:
            if not (entry := self._entry(kind, name, revision or "main")):
                return
            commit, files = entry
            if what == "tree":
                self._json([_listed(file, data) for file, data in files.items()])
            else:
                self._json({"id": name, "sha": commit, "siblings": [], "tags": []})

        def _file(self, kind: str, name: str, revision: str, file: str) -> None:
            if not (entry := self._entry(kind, name, revision)):
                return
            commit, files = entry
            if file not in files:
                return self._error(404, "EntryNotFound", commit)
            data = files[file]
            start = 0
            if span := self.headers.get("Range"):
                start = int(span.removeprefix("bytes=").partition("-")[0])
            self.send_response(206 if start else 200)
            self.send_header("ETag", f'"{_oid(data)}"')
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", str(len(data) - start))
            if file in hub.pretended:
                self.send_header("X-Linked-Size", str(hub.pretended[file]))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            if self.command == "HEAD":
                return
            stop = hub.cut.pop(file, hub.stalled.get(file, len(data)))
            self.wfile.write(data[start:stop])
            self.close_connection = stop < len(data)
            if file in hub.stalled:
                hub.closed.wait(30)

        def _entry(self, kind: str, name: str, revision: str) -> tuple[str, Files] | None:
            if name in hub.refused:
                self._error(*hub.refused[name])
            elif (kind, name) not in hub.repos:
                self._error(404, "RepoNotFound")
            elif entry := hub.files(kind, name, revision):
                return entry
            else:
                self._error(404, "RevisionNotFound")
            return None

        def _json(self, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _error(self, status: int, code: str, commit: str = "") -> None:
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            if commit:
                self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    def _listed(file: str, data: bytes) -> dict[str, Any]:
        size = hub.pretended.get(file, len(data))
        return {"type": "file", "path": file, "size": size, "oid": _oid(data)}

    return Handler


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def offline(environment: dict[str, str]) -> dict[str, str]:
    """The environment of a process on a node without a network."""
    dead = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    return os.environ | environment | dead
