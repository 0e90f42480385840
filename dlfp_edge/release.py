"""Shows the tokens of paced streams when their time has come, and after its last token that a stream has ended.

Once `start`ed it does so from a thread of its own, so that a token is on time whatever the engine does meanwhile;
until then, on virtual time for ever, it does when it is told to (`serve`).

The engine's thread and this one share the streams and what records say was shown, under one lock. It is held for some
microseconds: callbacks run outside it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from dlfp_edge.clock import Clock
from dlfp_edge.handle import Task
from dlfp_edge.playout import Playout
from dlfp_edge.wakeup import Lead

NAP_S = 0.001
"""What is left of a wait after waking early is slept in pieces of at most this length."""


@dataclass(slots=True)
class _Stream:
    """A paced task of which there is something left to show or to tell; `over` says that nothing is added any more."""

    task: Task
    playout: Playout
    over: bool = False

    @property
    def at(self) -> float:
        """When there will be something to do."""
        at = self.playout.next_at()
        return at if at is not None else -inf if self.over else inf


class _Turn(NamedTuple):
    """What is told of a task now: a token shown (None: there is none), and whether that was its end."""

    task: Task
    position: int | None
    last: bool


class Release:
    """Releases paced tokens through `show` (task, position, last) and ends of tasks through `end`, in order."""

    def __init__(self, clock: Clock, show: Callable[[Task, int, bool], None], end: Callable[[Task], None]) -> None:
        self.thread: threading.Thread | None = None
        """The one that shows; None where the caller does."""
        self._clock = clock
        self._show, self._end = show, end
        self._changed = threading.Condition(threading.Lock())
        self._streams: dict[str, _Stream] = {}
        self._contended = False
        self._lead = Lead()
        self._stopping = False

    # --- for the engine's thread --------------------------------------------------------------------------------------

    def start(self, failed: Callable[[BaseException], None]) -> None:
        """Show tokens from a thread of its own. `failed` hears from it of what ends it before its time."""
        self.thread = threading.Thread(target=self._run, args=(failed,), name="dlfp-release", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """End the thread, after the callback that it may be in; what is left is for `flush`."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self.thread is not None:
            self.thread.join()
            self.thread = None

    def add(self, task: Task, playout: Playout, available: float, least_gap_s: float) -> None:
        """The next token of a task is in its record. Arguments as for `Playout.add`."""
        with self._changed:
            stream = self._streams.get(task.request_id)
            if stream is None:
                stream = self._streams[task.request_id] = _Stream(task, playout)
                playout.contend(self._contended)
            idle = not playout.waits
            playout.add(available, least_gap_s)
            if idle:  # else the thread knows of an earlier one
                self._changed.notify()

    def drop(self, task: Task) -> bool:
        """Show nothing more of a task, whether it was over or not; whether there was anything. `finish` comes next."""
        with self._changed:
            stream = self._streams.get(task.request_id)
            if stream is None or not stream.playout.waits:
                return False
            stream.playout.drop()
            stream.over = False
            return True

    def finish(self, task: Task, settle: Callable[[], None], *, at_once: bool) -> bool:
        """Nothing is added to a task any more: what is left of it is shown on time, or `at_once`, then its end is told.

        `settle` writes the end into the record, while nothing is shown. False, and nothing done, for a task of which
        nothing was to be shown here.
        """
        with self._changed:
            stream = self._streams.get(task.request_id)
            if stream is None:
                return False
            settle()
            stream.over = True
            if at_once:
                stream.playout.hurry()
            self._changed.notify()
            return True

    def contend(self, contended: bool) -> None:
        """Background work contends from now on, or does no longer."""
        if contended == self._contended:
            return
        with self._changed:
            self._contended = contended
            for stream in self._streams.values():
                stream.playout.contend(contended)
            self._changed.notify()

    @property
    def waits_for_calm(self) -> bool:
        """Whether there are tokens that could be shown earlier if background work did not contend."""
        with self._changed:
            return self._contended and any(stream.playout.waits for stream in self._streams.values())

    def next_due(self) -> float | None:
        """When there will be something to `serve`; None where a thread does it, or there is nothing."""
        if self.thread is not None:
            return None
        first = self._first()
        return None if first is None or first.at == inf else first.at

    def serve(self, now: float) -> None:
        """Without a thread: show what is due."""
        while self.thread is None and (first := self._first()) is not None and first.at <= now:
            self._tell(self._take(first, now))

    def flush(self, now: float) -> None:
        """Once there is no thread: show everything, in order."""
        while (first := self._first()) is not None and first.at < inf:
            self._tell(self._take(first, now))

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, failed: Callable[[BaseException], None]) -> None:
        try:
            while (turn := self._wait()) is not None:
                self._tell(turn)
        except BaseException as error:  # nobody else would learn that it has ended
            failed(error)

    def _wait(self) -> _Turn | None:
        """Wait for something to tell; None once there is to be no thread."""
        while True:
            with self._changed:
                if self._stopping:
                    return None
                first, now = self._first(), self._clock.now()
                left_s = inf if first is None else first.at - now
                if first is not None and left_s <= 0:
                    return self._take(first, now)
                if left_s > self._lead.seconds:
                    self._sleep(now, left_s)
                    continue
            time.sleep(min(left_s / 2, NAP_S))

    def _sleep(self, now: float, left_s: float) -> None:
        """Wait until something changes, or until a little before the time, learning how late such waits return."""
        if left_s == inf:
            self._changed.wait()
            return
        wait_s = left_s - self._lead.seconds
        if not self._changed.wait(min(wait_s, threading.TIMEOUT_MAX)):
            self._lead.learn(self._clock.now() - now - wait_s)

    # --- what both do -------------------------------------------------------------------------------------------------

    def _first(self) -> _Stream | None:
        """The stream whose turn comes first."""
        return min(self._streams.values(), key=lambda stream: stream.at, default=None)

    def _take(self, stream: _Stream, now: float) -> _Turn:
        """Note in the record that the stream's next token is shown now, if there is one."""
        record, position = stream.task.record, None
        if stream.playout.waits:
            position = len(record.shown_times)
            record.due_times.append(stream.playout.show())
            record.shown_times.append(now)
        last = stream.over and not stream.playout.waits
        if last:
            del self._streams[stream.task.request_id]
        return _Turn(stream.task, position, last)

    def _tell(self, turn: _Turn) -> None:
        if turn.position is not None:
            self._show(turn.task, turn.position, turn.last)
        if turn.last:
            self._end(turn.task)
