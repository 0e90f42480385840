"""Callers that wait for a worker's answer, each by a key of its own."""

from __future__ import annotations

import itertools
import threading

from dlfp_edge.worker.protocol import Message


class Reply:
    """One answer somebody waits for."""

    def __init__(self, owner: Replies, key: object) -> None:
        self._owner = owner
        self._key = key
        self._came = threading.Event()
        self._message: Message | None = None

    def result(self, timeout_s: float | None) -> Message | None:
        """The answer; None where none came in time, or none will come. Nobody waits any more afterwards."""
        self._came.wait(timeout_s)
        self._owner.forget(self._key)
        return self._message

    def give(self, message: Message | None) -> None:
        """Let the caller go on with this."""
        self._message = message
        self._came.set()


class Replies:
    """Answers that are waited for."""

    def __init__(self) -> None:
        self._waiting: dict[object, Reply] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def expect(self, key: object) -> Reply:
        """Begin to wait."""
        reply = Reply(self, key)
        with self._lock:
            self._waiting[key] = reply
        return reply

    def number(self) -> int:
        """A key that was not used before."""
        return next(self._numbers)

    def take(self, key: object, message: Message) -> bool:
        """An answer has come; False where nobody waits for it."""
        with self._lock:
            reply = self._waiting.pop(key, None)
            if reply is not None:
                reply.give(message)
        return reply is not None

    def forget(self, key: object) -> None:
        """Nobody waits for this any more."""
        with self._lock:
            self._waiting.pop(key, None)

    def drop(self) -> None:
        """The worker has gone, and with it every answer."""
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        for reply in waiting:
            reply.give(None)
