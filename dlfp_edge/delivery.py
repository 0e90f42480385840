"""Tokens on their way to the reader, and the end of tasks: each record ends exactly once, after its last token."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable

from dlfp_edge.handle import Task
from dlfp_edge.running import Running
from dlfp_edge.task import Finish

_log = logging.getLogger(__name__)


class Delivery:
    """Releases tokens when they are due; `ended` is called once a task's last token is out."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.ended: Callable[[Task], None] = lambda task: None
        self._due: list[tuple[float, int, Task, int]] = []
        self._order = itertools.count()

    def token(self, running: Running, token: int, available: float, *, contended: bool) -> bool:
        """A token became available at `available`; it is released at once, or when its pace says.

        Returns whether it completes a stop string.
        """
        record = running.task.record
        record.output_token_ids.append(token)
        record.token_times.append(available)
        record.contended.append(contended)
        due = running.playout.due(available)
        heapq.heappush(self._due, (due, next(self._order), running.task, len(record.token_times) - 1))
        return running.task.accept(token)

    def finish(self, task: Task, finish: Finish, now: float, error: str | None = None) -> None:
        """Nothing follows what is already there. A task that ended otherwise than asked shows the rest at once."""
        record = task.record
        if record.finish is not None:
            return
        task.accept_no_more()
        if record.stop_string is not None and finish is Finish.LENGTH:
            finish = Finish.STOP
        record.finish, record.finished, record.error = finish, now, error
        if finish not in (Finish.STOP, Finish.LENGTH):
            self._show_now(task, now)
        if len(record.shown_times) == len(record.token_times):
            self._close(task)

    def release(self, now: float) -> None:
        """Show what is due."""
        while self._due and self._due[0][0] <= now:
            due, _, task, index = heapq.heappop(self._due)
            if index == len(task.record.shown_times):
                self._show(task, index, now if task.spec.pace else due)

    def flush(self, now: float) -> None:
        """Show everything now, in order."""
        while self._due:
            _, _, task, index = heapq.heappop(self._due)
            if index == len(task.record.shown_times):
                self._show(task, index, now)

    def next_due(self) -> float | None:
        """When the next token is due; None when none waits."""
        while self._due and self._due[0][3] < len(self._due[0][2].record.shown_times):
            heapq.heappop(self._due)  # shown already, when its task was ended early
        return self._due[0][0] if self._due else None

    def _show_now(self, task: Task, now: float) -> None:
        for index in range(len(task.record.shown_times), len(task.record.token_times)):
            task.record.shown_times.append(now)
            self._release(task, index, last=index == len(task.record.token_times) - 1)

    def _show(self, task: Task, index: int, at: float) -> None:
        record = task.record
        record.shown_times.append(at)
        last = record.finish is not None and index == len(record.token_times) - 1
        self._release(task, index, last=last)
        if last:
            self._close(task)

    # A caller's callback that raises must not stop the engine, and with it everybody else's tasks, whatever it raises.

    def _release(self, task: Task, index: int, *, last: bool) -> None:
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
