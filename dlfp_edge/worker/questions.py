"""What callers ask the worker and wait for: an answer comes from the next worker if this one dies."""

from __future__ import annotations

import threading
from typing import Any

from dlfp_edge.errors import DlfpError, EngineClosed, UsageError
from dlfp_edge.worker.link import Link
from dlfp_edge.worker.protocol import Message, ProtocolError
from dlfp_edge.worker.replies import Replies

REPLY_S = 2.0
"""How long a caller is kept for a worker that does not answer."""


def engine_closed(failure: Exception | None) -> EngineClosed:
    """What a caller is told after the end."""
    return EngineClosed(f"the engine is closed: {failure}" if failure else "the engine is closed")


class Questions:
    """Questions to whichever worker is up. `thread` is the one that starts workers, and cannot wait for one."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self._replies = Replies()
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._ended: EngineClosed | None = None
        self._open = threading.Event()
        """Set while a worker is up, and for good at the end."""

    @property
    def is_up(self) -> bool:
        """Whether there is a worker to ask."""
        return self._link is not None

    def up(self, link: Link) -> None:
        """A worker can be asked."""
        with self._lock:
            self._link = link
        self._open.set()

    def down(self) -> None:
        """The worker has died."""
        with self._lock:
            self._link = None
            self._open.clear()
        self._replies.drop()

    def gone(self, failure: DlfpError | None) -> None:
        """There is no worker any more."""
        with self._lock:
            self._link = None
            self._ended = engine_closed(failure)
        self._replies.drop()
        self._open.set()

    def wait_until_open(self) -> None:
        """Wait for a worker, or for the end."""
        self._open.wait()

    def answered(self, message: Message) -> None:
        """An answer has come. Raises ProtocolError where it is none."""
        if "error" not in message and "value" not in message:
            raise ProtocolError("it answers nothing")
        self._replies.take(message["ask"], message)

    def ask(self, what: str, fields: dict[str, Any]) -> Any:
        """The worker's answer. Raises the error it says as UsageError, EngineClosed after the end.

        A callback cannot wait for the next worker, because it keeps the thread that starts it.
        """
        in_callback = self.thread is threading.current_thread()
        while True:
            if not in_callback:
                self._open.wait()
            reply = self._ask(what, fields, REPLY_S if in_callback else None)
            if reply is not None and "error" in reply:
                raise UsageError(reply["error"])
            if reply is not None:
                return reply["value"]
            if self._ended is not None:
                raise self._ended
            if in_callback:
                raise DlfpError("the worker is being started again: do this in a thread of your own, not in a callback")

    def ask_now(self, what: str) -> Any:
        """The worker's answer; None where there is no worker, or it does not answer soon."""
        reply = self._ask(what, {}, REPLY_S)
        return None if reply is None else reply.get("value")

    def _ask(self, what: str, fields: dict[str, Any], timeout_s: float | None) -> Message | None:
        with self._lock:
            if self._link is None:
                return None
            number = self._replies.number()
            reply = self._replies.expect(number)
            self._link.post("ask", ask=number, what=what, **fields)
        return reply.result(timeout_s)
