"""The handle a caller holds on a task: iterate its tokens, wait, cancel."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple

import numpy as np

from dlfp_edge.errors import DlfpError
from dlfp_edge.given import YEAR_S, check_number, check_process
from dlfp_edge.runtime import Tokenizer
from dlfp_edge.structured import Structured
from dlfp_edge.task import Class, Finish, OnFinish, OnToken, TaskRecord, TaskSpec
from dlfp_edge.text import AnswerText


class Token(NamedTuple):
    """One token of an answer, with the text that became certain with it.

    `text` is "" while a character is incomplete or what there is could begin a stop string; a later token's has it all.
    `id` is None for text that was held back until the answer ended, after its last token.
    """

    id: int | None
    text: str


class Task:
    """One submitted task. Its tokens can be iterated by any number of readers, in threads or coroutines.

    `structured` follows an answer that must keep to a grammar; the engine's.
    """

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
        self.structured = Structured.of(None if spec.embed else spec.sampling.grammar, tokenizer)
        self._tokenizer = tokenizer
        self._cancel = cancel
        self._on_token = on_token
        self._on_finish = on_finish
        self._changed = threading.Condition()
        self._watchers: list[Callable[[], None]] = []
        self._text = AnswerText(spec.stop)
        self._shown = 0
        self._done = False
        self._process = os.getpid()

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

    @property
    def text(self) -> str:
        """The answer as far as it was shown: what the tokens' texts come to."""
        with self._changed:
            return "".join(self.record.pieces[: self._shown])

    def is_end(self, token: int) -> bool:
        """Whether the model ends its answer with this token."""
        return self._tokenizer.is_end(token)

    def cancel(self) -> None:
        """End the task now; what it has produced stays in its record, of a paced answer what was shown.

        A task of which nothing is left to show stays as it is.
        """
        self._cancel(self)

    def wait(self, timeout_s: float | None = None) -> TaskRecord:
        """Block until the task has ended, or `timeout_s` passed; returns its record either way.

        Raises UsageError in a process made by fork(), where the task would never end.
        """
        if timeout_s is not None:
            check_number("timeout_s", timeout_s, -YEAR_S, YEAR_S)
        self._wait_for(lambda: self._done, timeout_s)
        return self.record

    def __iter__(self) -> Iterator[Token]:
        """The tokens as they are released. Raises DlfpError if the task fails."""
        index = 0
        while True:
            self._wait_for(lambda at=index: self._done or self._shown > at)  # type: ignore[misc]
            with self._changed:
                shown, done = self._shown, self._done
            for position in range(index, shown):
                yield self._token(position)
            index = shown
            if done:
                self._raise_if_failed()
                return

    async def __aiter__(self) -> AsyncIterator[Token]:
        self._check_here()
        index = 0
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
                for position in range(index, shown):
                    yield self._token(position)
                index = shown
                if done:
                    self._raise_if_failed()
                    return
                await event.wait()
        finally:
            with self._changed:
                self._watchers.remove(notify)

    def accept(self, token: int) -> bool:
        """Add the text of a token to the record; whether a stop string is complete (called by the engine).

        It is looked up here, so that an answer can be read after the model has gone.
        """
        self.record.pieces.append(self._text.feed(self._tokenizer.token_bytes(token)))
        self.record.stop_string = self._text.stopped
        return self._text.stopped is not None

    def accept_no_more(self) -> None:
        """Add what was held back to the last token's text, or after it if that was shown (called by the engine)."""
        rest = self._text.end()
        self.record.stop_string = self._text.stopped
        if len(self.record.shown_times) < len(self.record.pieces):
            self.record.pieces[-1] += rest
        elif rest:
            self.record.pieces.append(rest)

    def cut(self) -> None:
        """Forget the tokens that were not shown, and what text was held back with them (called by the engine)."""
        self.record.keep_shown()
        self._text = AnswerText(self.spec.stop)
        for token in self.record.output_token_ids:
            self._text.feed(self._tokenizer.token_bytes(token))

    def release(self, index: int, *, last: bool) -> None:
        """Show token `index` to the readers (called by the engine, which calls `end` right after the last one)."""
        if not last:
            self._announce(index + 1, done=False)
        if self._on_token is not None:
            self._on_token(self.record, index)

    def end(self) -> None:
        """Tell the readers that nothing follows (called by the engine, once)."""
        self._announce(len(self.record.pieces), done=True)
        if self._on_finish is not None:
            self._on_finish(self.record)

    def _check_here(self) -> None:
        """Raises UsageError where what is left of the task would never come."""
        if not self._done:
            check_process(self._process)

    def _wait_for(self, condition: Callable[[], bool], timeout_s: float | None = None) -> None:
        self._check_here()
        with self._changed:
            self._changed.wait_for(condition, timeout_s)

    def _announce(self, shown: int, *, done: bool) -> None:
        with self._changed:
            self._shown, self._done = shown, done
            self._changed.notify_all()
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher()

    def _token(self, index: int) -> Token:
        ids = self.record.output_token_ids
        return Token(ids[index] if index < len(ids) else None, self.record.pieces[index])

    def _raise_if_failed(self) -> None:
        if self.record.finish is Finish.ERROR:
            raise DlfpError(self.record.error or "the task failed")
