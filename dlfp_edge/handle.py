"""The handle a caller holds on a task: iterate its tokens, wait, cancel."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple

import numpy as np

from dlfp_edge.errors import DlfpError
from dlfp_edge.runtime import Tokenizer
from dlfp_edge.task import Class, Finish, OnFinish, OnToken, TaskRecord, TaskSpec


class Token(NamedTuple):
    """One token of an answer; `text` is "" while its character is incomplete, and holds the whole character later."""

    id: int
    text: str


class Task:
    """One submitted task. Its tokens can be iterated by any number of readers, in threads or coroutines."""

    def __init__(
        self,
        spec: TaskSpec,
        record: TaskRecord,
        tokenizer: Tokenizer,
        cancel: Callable[[Task], None],
        on_token: OnToken | None,
        on_finish: OnFinish | None,
    ) -> None:
        self.spec = spec
        self.prompt_ids = np.array(spec.prompt, np.int32)
        self.record = record
        self._tokenizer = tokenizer
        self._cancel = cancel
        self._on_token = on_token
        self._on_finish = on_finish
        self._changed = threading.Condition()
        self._watchers: list[Callable[[], None]] = []
        self._pieces: list[bytes] = []
        self._shown = 0
        self._done = False

    @property
    def request_id(self) -> str:
        """The id this task has in every record."""
        return self.record.request_id

    @property
    def arrived(self) -> float:
        """When the task arrived, on the engine's clock."""
        return self.record.arrived

    @property
    def task_class(self) -> Class:
        """Whether somebody is watching."""
        return self.spec.task_class

    @property
    def done(self) -> bool:
        """Whether the task has ended and its last token was released."""
        return self._done

    def is_end(self, token: int) -> bool:
        """Whether the model ends its answer with this token."""
        return self._tokenizer.is_end(token)

    def cancel(self) -> None:
        """End the task now; what it has produced stays in its record. Ending an ended task does nothing."""
        self._cancel(self)

    def wait(self, timeout_s: float | None = None) -> TaskRecord:
        """Block until the task has ended, or `timeout_s` passed; returns its record either way."""
        with self._changed:
            self._changed.wait_for(lambda: self._done, timeout_s)
        return self.record

    def __iter__(self) -> Iterator[Token]:
        """The tokens as they are released. Raises DlfpError if the task fails."""
        decoder, index = codecs.getincrementaldecoder("utf-8")("replace"), 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda at=index: self._done or self._shown > at)  # type: ignore[misc]
                shown, done = self._shown, self._done
            for position in range(index, shown):
                yield self._token(decoder, position, last=done and position == shown - 1)
            index = shown
            if done:
                self._raise_if_failed()
                return

    async def __aiter__(self) -> AsyncIterator[Token]:
        decoder, index = codecs.getincrementaldecoder("utf-8")("replace"), 0
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def notify() -> None:
            with contextlib.suppress(RuntimeError):  # the reader's loop has closed; the other readers' have not
                loop.call_soon_threadsafe(event.set)

        with self._changed:
            self._watchers.append(notify)
        try:
            while True:
                event.clear()
                with self._changed:
                    shown, done = self._shown, self._done
                for at in range(index, shown):
                    yield self._token(decoder, at, last=done and at == shown - 1)
                index = shown
                if done:
                    self._raise_if_failed()
                    return
                await event.wait()
        finally:
            with self._changed:
                self._watchers.remove(notify)

    def release(self, index: int, *, last: bool) -> None:
        """Show token `index` to the readers (called by the engine, which calls `end` right after the last one).

        Its bytes are looked up here, so that an answer can be read after the model has gone.
        """
        self._pieces.append(self._tokenizer.token_bytes(self.record.output_token_ids[index]))
        if not last:
            self._announce(index + 1, done=False)
        if self._on_token is not None:
            self._on_token(self.record, index)

    def end(self) -> None:
        """Tell the readers that nothing follows (called by the engine, once)."""
        self._announce(len(self.record.shown_times), done=True)
        if self._on_finish is not None:
            self._on_finish(self.record)

    def _announce(self, shown: int, *, done: bool) -> None:
        with self._changed:
            self._shown, self._done = shown, done
            self._changed.notify_all()
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher()

    def _token(self, decoder: codecs.IncrementalDecoder, index: int, *, last: bool) -> Token:
        return Token(self.record.output_token_ids[index], decoder.decode(self._pieces[index], last))

    def _raise_if_failed(self) -> None:
        if self.record.finish is Finish.ERROR:
            raise DlfpError(self.record.error or "the task failed")
