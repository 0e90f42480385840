"""The front's tasks from submission to end, whichever worker runs them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from math import inf

from dlfp_edge.clock import Clock
from dlfp_edge.errors import DlfpError, QueueFull, UsageError
from dlfp_edge.handle import Task
from dlfp_edge.runtime import Tokenizer
from dlfp_edge.settings import Settings
from dlfp_edge.task import Class, Finish, OnFinish, OnToken, TaskRecord, TaskSpec
from dlfp_edge.worker.ledger import Entry, Fate, Ledger
from dlfp_edge.worker.link import Ending, Link
from dlfp_edge.worker.loop import Loop
from dlfp_edge.worker.messages import SPEC, add_part, shifted
from dlfp_edge.worker.notes import Notes
from dlfp_edge.worker.protocol import Message
from dlfp_edge.worker.questions import REPLY_S, engine_closed
from dlfp_edge.worker.replies import Replies


class Tasks:
    """Takes tasks, gives them to the worker that is up, and ends each once.

    `submit` and `hold` may be called from any thread, `refused` by the one that reads, everything else runs in the
    loop's. `progressed` is called when a task has ended that could be done.
    """

    def __init__(
        self, loop: Loop, clock: Clock, settings: Settings, notes: Notes, progressed: Callable[[], None]
    ) -> None:
        self.background_finished = 0
        self._loop = loop
        self._clock = clock
        self._notes = notes
        self._progressed = progressed
        self._running = _most_running(settings)
        self._queue_limit = settings.queue_limit
        self._ledger = Ledger(self._running)
        self._replies = Replies()
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._offset_s = 0.0
        self._held = False
        self._closing = False
        self._failure: DlfpError | None = None

    # --- for callers ---------------------------------------------------------------------------------------------

    def submit(
        self,
        spec: TaskSpec,
        tokenizer: Tokenizer,
        arrived: float | None,
        on_token: OnToken | None,
        on_finish: OnFinish | None,
    ) -> Task:
        """Queue a task, and hear of the worker whether it takes it, if there is one that answers."""
        number = next(self._ids)
        record = TaskRecord(
            request_id=f"{spec.task_class.value[:1]}{number}",
            task_class=spec.task_class,
            label=spec.label,
            prompt_tokens=len(spec.prompt),
            arrived=self._clock.now() if arrived is None else arrived,
            pace=spec.pace,
        )
        task = Task(spec, record, tokenizer, self._cancel, on_token, on_finish)
        self._offer(Entry(number, task))
        if (due := _deadline(task)) < inf:
            self._loop.call_at(due, lambda: self._expire(task.request_id))
        return task

    def hold(self, held: bool) -> None:
        """Whether the worker, or the next one, holds background work."""
        with self._lock:
            self._held = held
            if self._link is not None:
                self._link.post("hold", held=held)

    def forget(self) -> None:
        """Have the worker drop the prefixes it keeps."""
        with self._lock:
            if self._link is not None:
                self._link.post("forget")

    def waiting(self) -> dict[Class, int]:
        """How many tasks of each class no worker has."""
        with self._lock:
            return {member: self._ledger.count(member, unsent=True) for member in Class}

    def begin_close(self) -> bool:
        """Take no more tasks; whether that is new."""
        with self._lock:
            closing, self._closing = self._closing, True
        return not closing

    # --- workers that come and go --------------------------------------------------------------------------------

    def up(self, link: Link, offset_s: float) -> None:
        """A worker is ready, whose clock is `offset_s` behind: it gets what waits."""
        with self._lock:
            self._link, self._offset_s = link, offset_s
            if self._held:
                link.post("hold", held=True)
            self._send_all()

    def down(self, ending: Ending) -> None:
        """The worker has died: some tasks end with it, the others wait for the next."""
        now, how = self._clock.now(), ending.how
        with self._lock:
            self._link = None
            fates = self._ledger.died(outside=ending.outside)
        self._replies.drop()
        for entry, fate in fates:
            if fate is Fate.CANCELLED:
                self._finish(entry, Finish.CANCELLED)
            elif fate is Fate.LOST:
                self._finish(entry, Finish.ERROR, f"the worker died during this answer ({how}): ask again")
            elif fate is Fate.BLAMED:
                deaths = f"the worker died {entry.deaths} times while this task ran (last: {how})"
                self._finish(entry, Finish.ERROR, f"{deaths}: it is not tried again; change the prompt or the model")
                self._progressed()
            elif _deadline(entry.task) <= now:
                self._finish(entry, Finish.DEADLINE)
        again = sum(fate is Fate.AGAIN for _, fate in fates)
        lost = sum(fate is Fate.LOST for _, fate in fates)
        self._notes.say(f"the worker died ({how}) and is started again: {lost} answers lost, {again} tasks begin again")

    def cancel_waiting(self) -> None:
        """End what no worker has."""
        with self._lock:
            here = [entry for entry in self._ledger.all() if not entry.sent]
        for entry in here:
            self._finish(entry, Finish.CANCELLED)

    def gone(self, failure: DlfpError | None) -> None:
        """There is no worker any more: whatever is left ends."""
        with self._lock:
            self._closing, self._link, self._failure = True, None, failure
            left = self._ledger.all()
        for entry in left:
            if failure is None:
                self._finish(entry, Finish.CANCELLED)
            else:
                self._finish(entry, Finish.ERROR, f"the engine failed: {failure}")
        self._replies.drop()

    # --- what the worker tells -----------------------------------------------------------------------------------

    def accepted(self, message: Message) -> None:
        """The worker has taken a task."""
        self._replies.take(message["task"], message)

    def refused(self, message: Message) -> None:
        """The worker has not taken a task; one whose caller waits no longer ends with the reason."""
        error = str(message["error"])
        if not self._replies.take(message["task"], message):
            self._refuse(message["task"], error)

    def progress(self, request_id: str, part: TaskRecord) -> None:
        """Tokens were released."""
        entry = self._ledger.get(request_id)
        if entry is not None:
            self._release(entry.task, part, ends=False)

    def finished(self, request_id: str, part: TaskRecord) -> None:
        """A task has ended."""
        entry = self._ledger.get(request_id)
        if entry is None:
            return
        self._release(entry.task, part, ends=True)
        self._progressed()
        self._ended(entry)

    # --- the rest ------------------------------------------------------------------------------------------------

    def _offer(self, entry: Entry) -> None:
        """Enter a task, and give it to the worker if that may have it now. Raises UsageError where it refuses."""
        with self._lock:
            self._enter(entry)
            waits = self._replies.expect(entry.task.request_id)
            if self._link is not None and entry in self._ledger.to_send():
                try:
                    self._send(self._link, entry)
                except UsageError:
                    self._ledger.remove(entry)
                    raise
            sent = entry.sent
        reply = waits.result(REPLY_S if sent else 0)
        if reply is not None and reply["kind"] == "refused":
            with self._lock:
                self._ledger.remove(entry)
            raise UsageError(reply["error"])

    def _enter(self, entry: Entry) -> None:
        """Take a task, if its class has room. Called with the lock held."""
        if self._closing:
            raise engine_closed(self._failure)
        task_class = entry.task.task_class
        most = self._queue_limit + self._running[task_class]
        if self._ledger.count(task_class) >= most:
            raise QueueFull(
                f"{most} {task_class.value} tasks run or wait already, the limit: try again when some are done"
            )
        self._ledger.add(entry)

    def _send(self, link: Link, entry: Entry) -> None:
        """Give the worker a task. Raises UsageError for one that is too large to send."""
        self._ledger.sent(entry)
        task = entry.task
        spec = replace(task.spec, label="")  # which only this process reads
        link.post("submit", task=task.request_id, spec=SPEC.encode(spec), arrived=task.arrived - self._offset_s)

    def _send_all(self) -> None:
        """Give the worker what it may have, if there is one. Called with the lock held."""
        for entry in self._ledger.to_send() if self._link is not None else ():
            assert self._link is not None
            try:
                self._send(self._link, entry)
            except UsageError as error:
                self._refuse(entry.task.request_id, str(error))

    def _refuse(self, request_id: str, error: str) -> None:
        """End a task that cannot run, which nobody waits to hear."""
        self._loop.post(lambda: self._end_here(request_id, Finish.ERROR, error))

    def _release(self, task: Task, part: TaskRecord, *, ends: bool) -> None:
        """Add a part to a task's record and show its tokens; the last of them where the task `ends`."""
        record = task.record
        first = len(record.shown_times)
        add_part(record, shifted(part, self._offset_s))
        last = len(record.shown_times) - 1 if ends else None
        for index in range(first, len(record.shown_times)):
            self._notes.guard(_callback(task), lambda at=index: task.release(at, last=at == last))  # type: ignore[misc]

    def _finish(self, entry: Entry, finish: Finish, error: str | None = None) -> None:
        """End a task that no worker will end."""
        record = entry.task.record
        record.finish, record.finished, record.error = finish, self._clock.now(), error
        self._ended(entry)

    def _ended(self, entry: Entry) -> None:
        if not entry.foreground and entry.task.record.finish in (Finish.STOP, Finish.LENGTH):
            self.background_finished += 1
        with self._lock:
            self._ledger.remove(entry)
            self._send_all()
        self._notes.guard(_callback(entry.task), entry.task.end)

    def _end_here(self, request_id: str, finish: Finish, error: str | None = None) -> None:
        entry = self._ledger.get(request_id)
        if entry is not None:
            self._finish(entry, finish, error)

    def _cancel(self, task: Task) -> None:
        self._loop.post(lambda: self._cancel_now(task.request_id))

    def _cancel_now(self, request_id: str) -> None:
        with self._lock:
            entry, link = self._ledger.get(request_id), self._link
            if entry is None:
                return
            if entry.sent and link is not None:
                entry.cancelled = True
                link.post("cancel", task=request_id)
                return
        self._finish(entry, Finish.CANCELLED)

    def _expire(self, request_id: str) -> None:
        """A deadline has passed: the worker ends what it has itself."""
        with self._lock:
            entry = self._ledger.get(request_id)
            waits = entry is not None and not entry.sent
        if waits:
            self._end_here(request_id, Finish.DEADLINE)


def _deadline(task: Task) -> float:
    """When a task is to end."""
    return inf if task.spec.deadline_s is None else task.arrived + task.spec.deadline_s


def _callback(task: Task) -> str:
    return f"a callback of {task.request_id}"


def _most_running(settings: Settings) -> dict[Class, int]:
    """How many tasks of a class a worker can run at once."""
    if settings.single_class:
        return dict.fromkeys(Class, settings.foreground_sequences + settings.background_sequences)
    return {Class.FOREGROUND: settings.foreground_sequences, Class.BACKGROUND: settings.background_sequences}
