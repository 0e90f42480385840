"""Tokens on their way to the reader, and the end of tasks: each record ends exactly once, after its last token.

Tokens without a pace are shown by the engine's loop, paced ones as `Release` does, at their time.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable

from dlfp_edge.clock import Clock
from dlfp_edge.handle import Task
from dlfp_edge.release import Release
from dlfp_edge.running import Running
from dlfp_edge.task import Finish

_log = logging.getLogger(__name__)


class Delivery:
    """Releases tokens when they are due; `ended` is called once a task's last token is out, in whichever thread it was.

    No gap of a paced stream is to be shorter than `least_gap_s` from its next token on.
    """

    def __init__(self, say: Callable[[str], None], clock: Clock) -> None:
        self._say = say
        self.ended: Callable[[Task], None] = lambda task: None
        self.least_gap_s = 0.0
        self._due: list[tuple[float, int, Task, int]] = []
        self._order = itertools.count()
        self._paced = Release(clock, self._release, self._close)
        self._told_pace = False

    def start(self, failed: Callable[[BaseException], None]) -> None:
        """Show paced tokens from a thread of their own; `failed` hears of what ends it."""
        self._paced.start(failed)

    def stop(self) -> None:
        """End that thread, if there is one."""
        self._paced.stop()

    @property
    def thread(self) -> threading.Thread | None:
        """The thread that shows paced tokens; None where the loop does."""
        return self._paced.thread

    def token(self, running: Running, token: int, available: float, *, contended: bool) -> bool:
        """A token became available at `available`; it is released at once, or when its pace says.

        Returns whether it completes a stop string.
        """
        task, record = running.task, running.task.record
        record.output_token_ids.append(token)
        record.token_times.append(available)
        record.contended.append(contended)
        stopped = task.accept(token)  # with its text it is complete: it may be shown from here on
        if task.spec.pace is not None:
            self._paced.add(task, running.playout, available, self.least_gap_s)
            self._note_pace(running)
        else:
            heapq.heappush(self._due, (available, next(self._order), task, len(record.token_times) - 1))
        return stopped

    def finish(self, task: Task, finish: Finish, now: float, error: str | None = None) -> None:
        """Nothing follows what is already there. A task that ended otherwise than asked shows the rest at once.

        Of a paced answer that is cancelled nothing more is shown, also where all of it was computed already: it ends
        where its reader is.
        """
        record = task.record
        if finish is Finish.CANCELLED and self._paced.drop(task):
            task.cut()
        elif record.finish is not None:
            return

        def settle() -> None:
            task.accept_no_more()
            stopped = record.stop_string is not None and finish is Finish.LENGTH
            record.finish, record.finished, record.error = Finish.STOP if stopped else finish, now, error

        at_once = finish not in (Finish.STOP, Finish.LENGTH)
        if self._paced.finish(task, settle, at_once=at_once):
            return
        settle()
        if at_once:
            self._show_now(task, now)
        if len(record.shown_times) == len(record.token_times):
            self._close(task)

    def contend(self, contended: bool) -> None:
        """Background work contends with paced streams from now on, or does no longer."""
        self._paced.contend(contended)

    @property
    def waits_for_calm(self) -> bool:
        """Whether paced tokens could be shown earlier if background work did not contend."""
        return self._paced.waits_for_calm

    def release(self, now: float) -> None:
        """Show what is due."""
        while self._due and self._due[0][0] <= now:
            due, _, task, index = heapq.heappop(self._due)
            if index == len(task.record.shown_times):
                self._show(task, index, due)
        self._paced.serve(now)

    def flush(self, now: float) -> None:
        """Show everything now, in order. The thread that shows paced tokens has been stopped."""
        while self._due:
            _, _, task, index = heapq.heappop(self._due)
            if index == len(task.record.shown_times):
                self._show(task, index, now)
        self._paced.flush(now)

    def next_due(self) -> float | None:
        """When the next token is due; None when none waits for the loop."""
        while self._due and self._due[0][3] < len(self._due[0][2].record.shown_times):
            heapq.heappop(self._due)  # shown already, when its task was ended early
        due = (self._due[0][0] if self._due else None, self._paced.next_due())
        return min((t for t in due if t is not None), default=None)

    def _note_pace(self, running: Running) -> None:
        """Record by how much the pace had to be lowered, and say so the first time."""
        lowered, record = running.playout.lowered, running.task.record
        if lowered is None:
            return
        record.lowest_pace = lowered if record.lowest_pace is None else min(lowered, record.lowest_pace)
        if not self._told_pace:
            self._told_pace = True
            self._say(
                f"a pace of {running.task.spec.pace:g} tokens/s leaves decoding too little time here, even alone: "
                f"shown at {lowered:.3g} tokens/s, as long as that is so"
            )

    def _show_now(self, task: Task, now: float) -> None:
        for index in range(len(task.record.shown_times), len(task.record.token_times)):
            task.record.shown_times.append(now)
            self._release(task, index, index == len(task.record.token_times) - 1)

    def _show(self, task: Task, index: int, at: float) -> None:
        record = task.record
        record.shown_times.append(at)
        last = record.finish is not None and index == len(record.token_times) - 1
        self._release(task, index, last)
        if last:
            self._close(task)

    # A caller's callback that raises must not stop the engine, and with it everybody else's tasks, whatever it raises.

    def _release(self, task: Task, index: int, last: bool) -> None:
        try:
            task.release(index, last=last)
        except BaseException as error:
            self._complain(task, error)

    def _close(self, task: Task) -> None:
        try:
            task.end()
        except BaseException as error:
            self._complain(task, error)
        self.ended(task)

    def _complain(self, task: Task, error: BaseException) -> None:
        _log.error("a callback of %s failed", task.request_id, exc_info=error)
        self._say(f"a callback of {task.request_id} failed: {type(error).__name__}: {error}")
