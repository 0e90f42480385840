"""How the front reaches a worker: a process it starts and may kill, or one of somebody else's that listens."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from dlfp_edge.errors import DlfpError
from dlfp_edge.worker.address import Address
from dlfp_edge.worker.protocol import BrokenOff, Message, ProtocolError, Wire, encode_frame

KEPT_LINES = 40
"""Of what a worker writes to stderr, the last ones are kept."""

ENDING_S = 2.0
"""How long a worker that has hung up may take to end."""


class Ending(NamedTuple):
    """How a worker came to its end, for people; `outside` says that somebody else sent it a signal."""

    how: str
    outside: bool = False


class Link:
    """A connection to one worker. Sending never blocks: a worker that has stopped reading must not stop the front."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._fault: str | None = None
        self.pid: int | None = None

    def start(self, deliver: Callable[[Message | None], None]) -> None:
        """Call `deliver` with every message, in a thread of its own, and with None once the worker has gone."""
        threading.Thread(target=self._write, name="dlfp-worker-writer", daemon=True).start()
        threading.Thread(target=self._read, args=(deliver,), name="dlfp-worker-reader", daemon=True).start()

    def post(self, kind: str, **fields: Any) -> None:
        """Send a message. Raises UsageError for one that is too large; to a worker that has gone it goes nowhere."""
        self._frames.put(encode_frame(kind, **fields))

    def kill(self, why: str) -> None:
        """End the connection, and the worker where it is this front's."""
        self._fault = self._fault or why
        self._cut()

    def ending(self) -> Ending:
        """How a worker that has gone came to its end."""
        self._frames.put(None)
        end = self._end()
        return end if self._fault is None else Ending(self._fault)

    def last_lines(self) -> tuple[str, ...]:
        """What the worker last wrote to stderr."""
        return ()

    def _cut(self) -> None:
        raise NotImplementedError

    def _end(self) -> Ending:
        raise NotImplementedError

    def _write(self) -> None:
        while (frame := self._frames.get()) is not None:
            try:
                self._wire.send_frame(frame)
            except (OSError, ValueError):
                return

    def _read(self, deliver: Callable[[Message | None], None]) -> None:
        message: Message | None
        while True:
            try:
                message = self._wire.receive()
            except BrokenOff:
                message = None
            except ProtocolError as error:
                self.kill(f"it sent what is no message: {error}")
                message = None
            deliver(message)
            if message is None:
                return


class ProcessLink(Link):
    """A worker started by this process, spoken to over its stdin and stdout, which finds the modules this one finds.

    Start it from a thread that lives as long as the worker shall: on Linux the worker dies with the thread.
    """

    def __init__(self) -> None:
        command = [sys.executable, "-m", "dlfp_edge.cli.main", "worker", "--parent", str(os.getpid())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment()
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        super().__init__(Wire(self._process.stdout, self._process.stdin))  # type: ignore[arg-type]
        self.pid = self._process.pid
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._listener = threading.Thread(target=self._listen, name="dlfp-worker-stderr", daemon=True)
        self._listener.start()

    def last_lines(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def _cut(self) -> None:
        self._process.kill()

    def _end(self) -> Ending:
        try:
            code = self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return Ending("it hung up and did not end")
        finally:
            with contextlib.suppress(OSError):
                assert self._process.stdin
                self._process.stdin.close()
        self._listener.join(ENDING_S)
        return _how(code)

    def _listen(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            self._lines.append(line.decode("utf-8", "replace").rstrip())


class SocketLink(Link):
    """A worker that listens at an address. Raises DlfpError where nobody does."""

    def __init__(self, address: Address) -> None:
        try:
            self._socket = address.connect()
        except OSError as error:
            raise DlfpError(f"no worker listens on {address}: {error.strerror or error}") from None
        super().__init__(Wire(self._socket.makefile("rb"), self._socket.makefile("wb")))

    def _cut(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _end(self) -> Ending:
        self._socket.close()
        return Ending("the connection ended")


def _environment() -> dict[str, str]:
    """This process's, with its module search path; what lies in the current folder is not searched besides."""
    path = [folder or os.getcwd() for folder in sys.path] + [os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, path))}


def _how(code: int) -> Ending:
    """An exit status as people know it."""
    if code >= 0:
        return Ending(f"exit code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return Ending(f"signal {-code}")
    if name == "SIGKILL":
        return Ending("SIGKILL: out of memory, or killed by somebody", outside=True)
    return Ending(name, outside=name in ("SIGTERM", "SIGHUP", "SIGINT"))
