"""A model hub on this machine, as far as a client that fetches files meets one.

Written from the routes and headers `huggingface_hub` asks for: the list of a repository, `resolve` with its commit,
linked ETag and size, the redirect to storage on another host, and ranges there.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_stand_in"


@dataclass
class Repository:
    """Files by name. `gated` ones are listed for all and handed out for `TOKEN` only."""

    files: dict[str, bytes]
    gated: bool = False
    commit: str = COMMIT
    branches: tuple[str, ...] = ("main",)


@dataclass
class StandInHub:
    """What the hub has, how it misbehaves, and what it was asked.

    `cut_after` are numbers of bytes after which the next answers from storage break off; `damaged` sends other bytes of
    the same length, `short` fewer with a length that fits them; `status` answers every request so; `silent` never does.
    """

    repositories: dict[str, Repository]
    address: str = ""
    storage: str = ""
    cut_after: list[int] = field(default_factory=list)
    damaged: bool = False
    short: bool = False
    status: int | None = None
    silent: threading.Event | None = None
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)

    def storage_ranges(self) -> list[str | None]:
        """The range of each request for content so far."""
        return [wanted for method, path, wanted in self.asked if method == "GET" and path.startswith("/content/")]


@contextmanager
def serving(hub: StandInHub) -> Iterator[StandInHub]:
    """Run the hub and its storage, each under a host name of its own, until the block ends."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub)) for _ in range(2)]
    hub.address = f"http://127.0.0.1:{servers[0].server_port}"
    hub.storage = f"http://localhost:{servers[1].server_port}"
    threads = [threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        if hub.silent is not None:
            hub.silent.set()
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


def _handler(hub: StandInHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def log_message(self, *_: Any) -> None:
            """Nobody reads it."""

        def _answer(self) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append((self.command, path, self.headers.get("Range")))
            if hub.silent is not None:
                hub.silent.wait()
            if hub.status is not None:
                self._send(hub.status, {}, b"")
            elif listed := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/revision/(.+))?", path):
                self._list(listed[1], listed[2] or "main")
            elif resolved := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self._resolve(*resolved.groups())
            elif path.startswith("/content/"):
                self._content(path.removeprefix("/content/"))
            else:
                self._send(404, {}, b"")

        def _found(self, name: str, revision: str) -> Repository | None:
            repository = hub.repositories.get(name)
            if repository is None:
                self._send(401, {"X-Error-Code": "RepoNotFound"}, b"")
            elif revision not in (*repository.branches, repository.commit):
                self._send(404, {"X-Error-Code": "RevisionNotFound"}, b"")
                return None
            return repository

        def _list(self, name: str, revision: str) -> None:
            if (repository := self._found(name, revision)) is not None:
                files = [
                    {
                        "rfilename": file,
                        "size": len(content),
                        "blobId": hashlib.sha1(content).hexdigest(),
                        "lfs": {"sha256": _sha256(content), "size": len(content), "pointerSize": 134},
                    }
                    for file, content in repository.files.items()
                ]
                document = {"id": name, "sha": repository.commit, "siblings": files, "gated": repository.gated}
                self._send(200, {"Content-Type": "application/json"}, json.dumps(document).encode())

        def _resolve(self, name: str, revision: str, file: str) -> None:
            if (repository := self._found(name, revision)) is None:
                return
            content = repository.files.get(file)
            if content is None:
                self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repository.commit}, b"")
            elif repository.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._send(401, {"X-Error-Code": "GatedRepo"}, b"")
            else:
                key = _sha256(content)
                headers = {
                    "X-Repo-Commit": repository.commit,
                    "X-Linked-Etag": f'"{key}"',
                    "X-Linked-Size": str(len(content)),
                    "Location": f"{hub.storage}/content/{key}",
                }
                self._send(302, headers, b"")

        def _content(self, key: str) -> None:
            contents = [content for repository in hub.repositories.values() for content in repository.files.values()]
            content = next(content for content in contents if _sha256(content) == key)
            if hub.damaged:
                content = bytes(len(content))
            if hub.short:
                content = bytes(len(content) // 2)
            status, headers, start = 200, {"ETag": f'"{key}"', "Accept-Ranges": "bytes"}, 0
            if wanted := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
                status, start = 206, int(wanted[1])
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._send(status, headers, content[start:], hub.cut_after.pop(0) if hub.cut_after else None)

        def _send(self, status: int, headers: dict[str, str], body: bytes, cut: int | None = None) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body[:cut])
            if cut is not None:
                self.close_connection = True

    return Handler


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
