"""What the worker has to tell its front, sent from a thread of its own: the engine must not wait for a pipe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from dlfp_edge.runtime import Tokenizer
from dlfp_edge.task import TaskRecord
from dlfp_edge.worker.messages import RECORD, part_of
from dlfp_edge.worker.protocol import Wire

LOOK_S = 0.5
"""How often to look for new messages of the engine, which tells nobody that it has one."""


class Outbox:
    """Sends what has gathered since it last sent: the tokens of all answers released meanwhile are one message."""

    def __init__(self, wire: Wire, tokenizer: Tokenizer, look: Callable[[], None]) -> None:
        self._wire = wire
        self._tokenizer = tokenizer
        self._look = look
        self._known: set[int] = set()
        self._sent: dict[str, int] = {}
        self._released: dict[str, tuple[TaskRecord, int]] = {}
        self._messages: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="dlfp-worker-outbox", daemon=True)
        self._thread.start()

    def released(self, task: str, record: TaskRecord, index: int) -> None:
        """Token `index` was released to its reader."""
        if record.finish is not None and index == len(record.output_token_ids) - 1:
            return  # it goes with the end, which follows at once
        with self._changed:
            self._released[task] = (record, index + 1)
            self._changed.notify()

    def finished(self, task: str, record: TaskRecord) -> None:
        """A task has ended; what was not sent of its record goes with the message."""
        self._put(lambda: self._finish(task, record))

    def say(self, kind: str, **fields: Any) -> None:
        """Send a message after what was said before."""
        self._put(lambda: self._wire.send(kind, **fields))

    def close(self) -> None:
        """Send what is left and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _put(self, message: Callable[[], None]) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify()

    def _run(self) -> None:
        closing = False
        while not closing:
            with self._changed:
                self._changed.wait_for(lambda: self._released or self._messages or self._closing, LOOK_S)
                released, self._released = self._released, {}
                messages, self._messages = self._messages, []
                closing = self._closing
            self._look()
            try:
                self._progress(released)
                for message in messages:
                    message()
            except (OSError, ValueError):
                return  # the front has gone, which the reading side sees too

    def _progress(self, released: dict[str, tuple[TaskRecord, int]]) -> None:
        parts = [(task, self._part(task, record, end)) for task, (record, end) in released.items()]
        if parts:
            encoded = [(task, RECORD.encode(part)) for task, part in parts]
            self._wire.send("progress", parts=encoded, bytes=self._bytes(part for _, part in parts))

    def _finish(self, task: str, record: TaskRecord) -> None:
        part = self._part(task, record, None)
        del self._sent[task]
        self._wire.send("finished", task=task, part=RECORD.encode(part), bytes=self._bytes([part]))

    def _part(self, task: str, record: TaskRecord, end: int | None) -> TaskRecord:
        start, self._sent[task] = self._sent.get(task, 0), end or 0
        return part_of(record, start, end)

    def _bytes(self, parts: Any) -> dict[int, str]:
        """The bytes of tokens this front has not seen, a character each."""
        new = {token for part in parts for token in part.output_token_ids} - self._known
        self._known |= new
        return {token: self._tokenizer.token_bytes(token).decode("latin-1") for token in new}
