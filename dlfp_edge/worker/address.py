"""Where a worker listens, as people write it: `unix:PATH` or `HOST:PORT`."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from pathlib import Path

from dlfp_edge.errors import UsageError

SECRET = "DLFP_EDGE_WORKER_SECRET"
"""The environment variable with the word that both sides of a TCP connection must know."""

CONNECT_S = 10.0
"""How long a worker may take to accept a connection."""

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Address:
    """A Unix socket (`path`), or a TCP `host` and `port`."""

    path: str | None = None
    host: str = ""
    port: int = 0

    @property
    def local(self) -> bool:
        """Whether only this machine reaches it."""
        return self.path is not None or self.host in _LOOPBACK

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path is not None else f"{self.host}:{self.port}"

    def connect(self) -> socket.socket:
        """A connection to the worker there. Raises OSError."""
        if self.path is None:
            connection = socket.create_connection((self.host, self.port), timeout=CONNECT_S)
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(CONNECT_S)
        try:
            connection.connect(self.path)
        except BaseException:
            connection.close()
            raise
        connection.settimeout(None)
        return connection

    def listen(self) -> socket.socket:
        """A socket that listens there; only this user reaches a Unix one. Raises UsageError where it cannot."""
        listener = socket.socket(socket.AF_INET if self.path is None else socket.AF_UNIX)
        try:
            if self.path is None:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((self.host, self.port))
            else:
                self._bind_path(listener)
            listener.listen()
        except OSError as error:
            listener.close()
            raise UsageError(f"cannot listen on {self} ({error.strerror or error}): choose another address") from None
        return listener

    def _bind_path(self, listener: socket.socket) -> None:
        assert self.path is not None
        self._remove_stale()
        mask = os.umask(0o177)
        try:
            listener.bind(self.path)
        finally:
            os.umask(mask)

    def _remove_stale(self) -> None:
        """A socket at which nobody listens was left by a worker that was killed. Raises OSError for any other."""
        assert self.path is not None
        if not Path(self.path).is_socket():
            return
        try:
            self.connect().close()
        except ConnectionRefusedError:
            Path(self.path).unlink(missing_ok=True)
        else:
            raise OSError(errno.EADDRINUSE, "a worker listens there already")


def parse_address(text: str) -> Address:
    """Raises UsageError for what is no address."""
    kind, _, path = text.partition(":")
    if kind == "unix":
        if not path:
            raise UsageError(f"'{text}' names no socket: write for example unix:/run/user/1000/dlfp-edge.sock")
        if not hasattr(socket, "AF_UNIX"):
            raise UsageError("this system has no Unix sockets: write for example 127.0.0.1:4321")
        return Address(path=path)
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) < 6 and int(port) < 65536):
        raise UsageError(f"'{text}' is no address: write unix:PATH, or HOST:PORT such as 127.0.0.1:4321")
    return Address(host=host.strip("[]"), port=int(port))
