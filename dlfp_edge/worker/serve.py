"""Where a worker's fronts come from: its stdin and stdout, or an address at which it listens."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NoReturn

from dlfp_edge.errors import UsageError
from dlfp_edge.worker.address import SECRET, Address
from dlfp_edge.worker.orphan import die_with
from dlfp_edge.worker.protocol import ProtocolError, Wire
from dlfp_edge.worker.session import Session

_BUSY = (
    "busy: another program uses this worker, which serves one at a time: close that one, or start a worker of your own"
)

GREETING_S = 10.0
"""How long a front may take to say its first word."""

LEAVING_S = 1.5
"""How long a worker whose front has gone may take to end."""


def serve_stdio(parent: int | None) -> NoReturn:
    """Serve the front at stdin and stdout, then end the process: with code 1 where it broke the protocol.

    `parent` is the front's process, if this is to die with it.
    """
    incoming, outgoing = _take_streams()
    if parent is not None:
        die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the front too, and that decides
    faulthandler.enable(all_threads=False)
    session, code = Session(Wire(incoming, outgoing)), 0
    try:
        asked = session.run()
    except ProtocolError as error:
        print(f"dlfp-edge: error: {error}", file=sys.stderr, flush=True)
        asked, code = False, 1
    if not asked:
        _end_by_force(code)
    if asked or not session.loading:
        session.close()
    os._exit(code)  # native threads may be at work still: what they use must not be taken apart under them


def serve_at(address: Address, say: Callable[[str], None]) -> NoReturn:
    """Serve fronts at an address, one at a time, until interrupted. Raises UsageError where it cannot listen."""
    secret = os.environ.get(SECRET) if address.path is None else None
    if address.path is None and not secret:
        raise UsageError(f"whoever reaches {address} could use the model: set {SECRET} for worker and front")
    turns = _Turns()
    listener = address.listen()
    host, port = listener.getsockname()[:2] if address.path is None else ("", 0)
    try:
        say(f"listening on {address if address.path is not None else f'{host}:{port}'}")
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_serve_one, args=(connection, secret, turns, say), daemon=True).start()
    finally:
        if address.path is not None:  # while it listens, so that it is no other worker's yet
            Path(address.path).unlink(missing_ok=True)
        listener.close()


class _Turns:
    """Whose turn it is: one front is served at a time, and the next one's model waits until the last one's is freed."""

    def __init__(self) -> None:
        self.serving = threading.Lock()
        self.loaded = threading.Lock()


def _serve_one(connection: socket.socket, secret: str | None, turns: _Turns, say: Callable[[str], None]) -> None:
    wire = Wire(connection.makefile("rb"), connection.makefile("wb"))
    with contextlib.closing(connection):
        if not _says_something(connection):
            return
        if not turns.serving.acquire(blocking=False):
            with contextlib.suppress(OSError):
                wire.send("failed", blame="busy", error=_BUSY)
            return
        with turns.loaded:
            session = Session(wire, secret)
            try:
                session.run()
            except ProtocolError as error:
                say(str(error))
            finally:
                turns.serving.release()
            session.close()


def _says_something(connection: socket.socket) -> bool:
    """Whether a front greets; a connection that is silent takes nobody's turn."""
    connection.settimeout(GREETING_S)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:
        return False
    finally:
        connection.settimeout(None)


def _take_streams() -> tuple[BinaryIO, BinaryIO]:
    """The connection; whatever else reads stdin or writes to stdout from here on gets nothing, and stderr."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return incoming, outgoing


def _end_by_force(code: int) -> None:
    """End the process soon, whatever the engine does."""
    timer = threading.Timer(LEAVING_S, os._exit, (code,))
    timer.daemon = True
    timer.start()
