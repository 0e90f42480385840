"""The front of an engine in a worker process: its interface, and what becomes of its tasks when the worker dies."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from types import TracebackType
from typing import Any

from dlfp_edge.clock import Clock, SystemClock
from dlfp_edge.engine import MOST_MESSAGES
from dlfp_edge.errors import DlfpError, EngineClosed, QueueFull, RuntimeFailure, UsageError
from dlfp_edge.given import check_arrival, check_not_in
from dlfp_edge.handle import Task
from dlfp_edge.limits import Limits
from dlfp_edge.runtime import Capabilities, LoadOptions
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, Finish, OnFinish, OnToken, TaskRecord, TaskSpec
from dlfp_edge.trace import Snapshot
from dlfp_edge.worker.address import Address
from dlfp_edge.worker.ledger import Entry, Fate, Ledger
from dlfp_edge.worker.link import Ending, Link, ProcessLink, SocketLink
from dlfp_edge.worker.loop import Loop
from dlfp_edge.worker.messages import CAPABILITIES, LIMITS, OPTIONS, RECORD, SETTINGS, SNAPSHOT, SPEC, add_part, shifted
from dlfp_edge.worker.protocol import Message, ProtocolError
from dlfp_edge.worker.replies import Replies
from dlfp_edge.worker.supervisor import Death, Supervisor
from dlfp_edge.worker.tokenizer import Ask, WorkerTokenizer

_log = logging.getLogger(__name__)

REPLY_S = 2.0
"""How long a caller is kept for a worker that does not answer; a request it got is then in its queue unconfirmed."""

CLOSE_S = 10.0
"""How long a worker may take to end what it has."""


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """The model in the worker, as far as the front knows it."""

    tokenizer: WorkerTokenizer
    clock: Clock
    capabilities: Capabilities
    ask: Ask

    def describe(self) -> dict[str, Any]:
        """What a manifest should say. Waits for a worker that is being started; raises EngineClosed after the end."""
        return dict(self.ask("describe", {}))

    def close(self) -> None:
        """Nothing to free here: the model goes with the worker, as its engine is closed."""


class WorkerEngine:
    """An engine in a process of its own, with the interface of `dlfp_edge.Engine`. A context manager.

    The worker is started again when it dies: background tasks then begin again, and so do answers of which nothing was
    shown; an answer under way ends with an error. Tokens of a background task are released once it has ended, so that
    nobody reads one twice. Submitting while a worker starts queues the task unchecked; one that cannot run ends with
    an error. Encoding text waits for the worker.

    `load` says what to load (its CPUs are the worker's matter), `address` a worker that listens, to be used instead of
    one of its own. Raises UsageError for what cannot be loaded, RuntimeFailure where the worker dies over it.
    """

    def __init__(
        self,
        load: LoadOptions,
        settings: Settings | None = None,
        *,
        runtime: str = "llama_cpp",
        address: Address | None = None,
        secret: str | None = None,
    ) -> None:
        self.clock: Clock = SystemClock()
        self.failure: Exception | None = None
        self.messages: list[str] = []
        self.runtime: WorkerModel
        """As the worker that is up, or was last, describes it."""
        self.placement: Placement
        self.controller_name: str
        settings = settings or Settings()
        self._settings = settings
        self._process = os.getpid()
        self._loop = Loop(self.clock)
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._running = _most_running(settings)
        self._ledger = Ledger(self._running)
        self._replies = Replies()
        self._tokenizer = WorkerTokenizer(self._ask)
        self._open = threading.Event()
        """Set once a worker is up, and for good at the end."""
        self._link: Link | None = None
        self._closing = False
        self._held = False
        self._background_finished = 0
        self._limits: Limits
        self._last: Snapshot
        self._supervisor = Supervisor(
            self._loop,
            self.clock,
            ProcessLink if address is None else lambda: SocketLink(address),
            {"secret": secret},
            {
                "runtime": runtime,
                "load": OPTIONS.encode(load),
                "settings": SETTINGS.encode(replace(settings, queue_limit=settings.queue_limit + _total(settings))),
            },
            self,
        )
        self._thread = threading.Thread(target=self._run, name="dlfp-worker-front", daemon=True)
        self._thread.start()
        self._loop.post(self._supervisor.start)
        try:
            self._open.wait()
        except BaseException:
            self.close()
            raise
        self._raise_if_failed()

    # --- for callers, from any thread ----------------------------------------------------------------------------

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id; None while there is none, and for one that listens."""
        link = self._supervisor.link
        return None if link is None else link.pid

    @property
    def is_up(self) -> bool:
        """Whether there is a worker that has loaded the model."""
        return self._link is not None

    @property
    def deaths(self) -> tuple[Death, ...]:
        """Every death of a worker so far."""
        return tuple(self._supervisor.deaths)

    @property
    def last_lines(self) -> tuple[str, ...]:
        """What the last worker that died had written to stderr."""
        return self._supervisor.last_lines

    def submit(
        self,
        spec: TaskSpec,
        *,
        arrived: float | None = None,
        on_token: OnToken | None = None,
        on_finish: OnFinish | None = None,
    ) -> Task:
        """Queue a task and return its handle; arguments and errors as for `Engine.submit`.

        Callbacks run in a thread of this engine, which also starts workers: they should return at once.
        """
        self._check_process()
        self._limits.check(spec)
        if arrived is not None:
            check_arrival(arrived)
        entry = self._entry(spec, arrived, on_token, on_finish)
        task = entry.task
        with self._lock:
            self._enter(entry)
            waits = self._replies.expect(task.request_id)
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
        if (due := _deadline(task)) < inf:
            self._loop.call_at(due, lambda: self._expire(task.request_id))
        return task

    def check(self, spec: TaskSpec) -> None:
        """Raises UsageError for a task that could never run here. Waits for a worker that is being started."""
        self._limits.check(spec)
        self._ask("check", {"spec": SPEC.encode(replace(spec, label=""))})

    def call_at(self, when: float, action: Callable[[], None]) -> None:
        """Run `action` in this engine's thread when its clock reads `when`. One that raises stops nobody."""
        self._check_process()
        self._loop.call_at(when, lambda: self._call("an action", action))

    def forget_prefixes(self) -> None:
        """Drop the KV cells that ended tasks have left for prompts that begin the same."""
        self._check_process()
        with self._lock:
            if self._link is not None:
                self._link.post("forget")

    def hold_background(self, held: bool) -> None:
        """Start no step of background work while held, by this worker or the next; a step that runs is let finish."""
        self._check_process()
        with self._lock:
            self._held = held
            if self._link is not None:
                self._link.post("hold", held=held)

    def snapshot(self) -> Snapshot:
        """The engine at this moment, for a live view; while there is no worker, with the figures of the last."""
        self._check_process()
        reply = self._ask_now("snapshot", {}, REPLY_S)
        if reply is not None and "value" in reply:
            last = SNAPSHOT.decode(reply["value"])
            self._last = replace(last, now=last.now + self._supervisor.offset_s)
            return self._with_own(self._last)
        if self.is_up:
            return self._with_own(self._last)
        idle = replace(
            self._last,
            now=self.clock.now(),
            foreground_running=0,
            foreground_queued=0,
            background_running=0,
            background_queued=0,
            paused=0,
            kv_used=0,
            stuck=(),
        )
        return self._with_own(idle)

    def close(self) -> None:
        """Cancel what is left, so that every record ends, and end the worker. Safe to repeat.

        Raises UsageError in a callback, whose thread this waits for.
        """
        if os.getpid() != self._process:
            return  # it is the other process's to close
        check_not_in(self._thread)
        with self._lock:
            closing, self._closing = self._closing, True
        if not closing:
            self._loop.post(self._begin_close)
        self._thread.join()

    def __enter__(self) -> WorkerEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- what the supervisor tells, in the loop's thread ---------------------------------------------------------

    def up(self, ready: Message) -> None:
        """A worker is ready: it gets what waits."""
        self.placement = Placement(ready["placement"])
        self.controller_name = ready["controller"]
        for message in ready["messages"]:
            self._say(message)
        self._limits = LIMITS.decode(ready["limits"])
        self._tokenizer.describe(self._limits.vocabulary, ready["end_tokens"])
        capabilities = CAPABILITIES.decode(ready["capabilities"])
        self.runtime = WorkerModel(self._tokenizer, self.clock, capabilities, self._ask)
        self._last = SNAPSHOT.decode(ready["snapshot"])
        with self._lock:
            self._link = self._supervisor.link
            assert self._link is not None
            if self._held:
                self._link.post("hold", held=True)
            self._send_all()
        self._open.set()

    def down(self, ending: Ending) -> None:
        """The worker has died: some tasks end with it, the others wait for the next."""
        now, how = self.clock.now(), ending.how
        with self._lock:
            self._link = None
            self._open.clear()
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
                self._supervisor.progress()
            elif _deadline(entry.task) <= now:
                self._finish(entry, Finish.DEADLINE)
        again = sum(fate is Fate.AGAIN for _, fate in fates)
        lost = sum(fate is Fate.LOST for _, fate in fates)
        self._say(f"the worker died ({how}) and is started again: {lost} answers lost, {again} tasks begin again")

    def told(self, message: Message) -> None:
        """What became of tasks, and what the worker has to say."""
        if message["kind"] == "notice":
            self._say(message["text"])
        elif message["kind"] == "progress":
            self.runtime.tokenizer.learn(message["bytes"])
            for request_id, part in message["parts"]:
                self._progress(request_id, RECORD.decode(part))
        elif message["kind"] == "finished":
            self.runtime.tokenizer.learn(message["bytes"])
            self._finished(message["task"], RECORD.decode(message["part"]))
        else:
            raise ProtocolError("its kind is unknown")

    def replied(self, message: Message) -> None:
        """An answer somebody waits for, or no longer: then a refused task ends with the reason."""
        if message["kind"] == "answer":
            if "error" not in message and "value" not in message:
                raise ProtocolError("it answers nothing")
            self._replies.take(message["ask"], message)
        elif message["kind"] == "accepted":
            self._replies.take(message["task"], message)
        else:
            error = str(message["error"])
            if not self._replies.take(message["task"], message):
                self._refuse(message["task"], error)

    def gone(self, failure: DlfpError | None) -> None:
        """There is no worker any more: whatever is left ends."""
        self.failure = failure
        with self._lock:
            self._closing = True
            self._link = None
            left = self._ledger.all()
        for entry in left:
            if failure is None:
                self._finish(entry, Finish.CANCELLED)
            else:
                self._finish(entry, Finish.ERROR, f"the engine failed: {failure}")
        self._replies.drop()
        self._open.set()
        self._loop.stop()

    # --- tasks ---------------------------------------------------------------------------------------------------

    def _enter(self, entry: Entry) -> None:
        """Take a task, if its class has room. Called with the lock held."""
        if self._closing:
            raise self._closed()
        task_class = entry.task.task_class
        most = self._settings.queue_limit + self._running[task_class]
        if self._ledger.count(task_class) >= most:
            raise QueueFull(
                f"{most} {task_class.value} tasks run or wait already, the limit: try again when some are done"
            )
        self._ledger.add(entry)

    def _entry(
        self, spec: TaskSpec, arrived: float | None, on_token: OnToken | None, on_finish: OnFinish | None
    ) -> Entry:
        number = next(self._ids)
        record = TaskRecord(
            request_id=f"{spec.task_class.value[:1]}{number}",
            task_class=spec.task_class,
            label=spec.label,
            prompt_tokens=len(spec.prompt),
            arrived=self.clock.now() if arrived is None else arrived,
            pace=spec.pace,
        )
        return Entry(number, Task(spec, record, self.runtime.tokenizer, self._cancel, on_token, on_finish))

    def _send(self, link: Link, entry: Entry) -> None:
        """Give the worker a task. Raises UsageError for one that is too large to send."""
        self._ledger.sent(entry)
        task = entry.task
        arrived = task.arrived - self._supervisor.offset_s
        spec = replace(task.spec, label="")  # which only this process reads
        link.post("submit", task=task.request_id, spec=SPEC.encode(spec), arrived=arrived)

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

    def _progress(self, request_id: str, part: TaskRecord) -> None:
        entry = self._ledger.get(request_id)
        if entry is None:
            return
        record = entry.task.record
        first = len(record.shown_times)
        add_part(record, shifted(part, self._supervisor.offset_s))
        for index in range(first, len(record.shown_times)):
            self._call(_callback(entry.task), lambda at=index: entry.task.release(at, last=False))  # type: ignore[misc]

    def _finished(self, request_id: str, part: TaskRecord) -> None:
        entry = self._ledger.get(request_id)
        if entry is None:
            return
        task, record = entry.task, entry.task.record
        first = len(record.shown_times)
        add_part(record, shifted(part, self._supervisor.offset_s))
        last = len(record.shown_times) - 1
        for index in range(first, last + 1):
            self._call(_callback(task), lambda at=index: task.release(at, last=at == last))  # type: ignore[misc]
        self._supervisor.progress()
        self._ended(entry)

    def _finish(self, entry: Entry, finish: Finish, error: str | None = None) -> None:
        """End a task that no worker will end."""
        record = entry.task.record
        record.finish, record.finished, record.error = finish, self.clock.now(), error
        self._ended(entry)

    def _ended(self, entry: Entry) -> None:
        if not entry.foreground and entry.task.record.finish in (Finish.STOP, Finish.LENGTH):
            self._background_finished += 1
        with self._lock:
            self._ledger.remove(entry)
            self._send_all()
        self._call(_callback(entry.task), entry.task.end)

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

    def _call(self, what: str, action: Callable[[], None]) -> None:
        """Run something that calls a caller's function: one that raises must not stop the others."""
        try:
            action()
        except BaseException as error:
            _log.error("%s failed", what, exc_info=error)
            self._say(f"{what} failed: {type(error).__name__}: {error}")

    # --- the rest ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:  # nobody else would learn that the loop has ended
            self._supervisor.abandon()
            self.gone(error if isinstance(error, DlfpError) else RuntimeFailure(f"the front failed: {error!r}"))

    def _begin_close(self) -> None:
        with self._lock:
            here = [entry for entry in self._ledger.all() if not entry.sent]
        for entry in here:
            self._finish(entry, Finish.CANCELLED)
        self._supervisor.close(CLOSE_S)

    def _ask(self, what: str, fields: dict[str, Any]) -> Any:
        """The worker's answer, from the next one if this one dies. Raises the error it says, or EngineClosed.

        A callback cannot wait for the next worker, because it keeps the thread that starts it.
        """
        self._check_process()
        in_callback = self._thread is threading.current_thread()
        while True:
            if not in_callback:
                self._open.wait()
            reply = self._ask_now(what, fields, REPLY_S if in_callback else None)
            if reply is not None and "error" in reply:
                raise UsageError(reply["error"])
            if reply is not None:
                return reply["value"]
            if self._closing and self._link is None:
                raise self._closed()
            if in_callback:
                raise DlfpError("the worker is being started again: do this in a thread of your own, not in a callback")

    def _ask_now(self, what: str, fields: dict[str, Any], timeout_s: float | None) -> Message | None:
        """The worker's answer; None where there is none, or it goes or does not answer in time."""
        with self._lock:
            if self._link is None:
                return None
            number = self._replies.number()
            reply = self._replies.expect(number)
            self._link.post("ask", ask=number, what=what, **fields)
        return reply.result(timeout_s)

    def _check_process(self) -> None:
        """Raises UsageError in a process made by fork(): it has none of the threads, and would wait for good."""
        if os.getpid() != self._process:
            raise UsageError("this engine was opened before this process was made by fork(): open one here")

    def _raise_if_failed(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _closed(self) -> EngineClosed:
        return EngineClosed(f"the engine is closed: {self.failure}" if self.failure else "the engine is closed")

    def _with_own(self, snapshot: Snapshot) -> Snapshot:
        """A worker's figures with what only the front knows: it may not have every task, nor have seen every end."""
        with self._lock:
            waiting = {member: self._ledger.count(member, unsent=True) for member in Class}
        return replace(
            snapshot,
            foreground_queued=snapshot.foreground_queued + waiting[Class.FOREGROUND],
            background_queued=snapshot.background_queued + waiting[Class.BACKGROUND],
            background_finished=self._background_finished,
            messages=tuple(self.messages),
        )

    def _say(self, message: str) -> None:
        if message not in self.messages and len(self.messages) < MOST_MESSAGES:
            self.messages.append(message)
            _log.warning("%s", message)


def _deadline(task: Task) -> float:
    """When a task is to end."""
    return inf if task.spec.deadline_s is None else task.arrived + task.spec.deadline_s


def _callback(task: Task) -> str:
    return f"a callback of {task.request_id}"


def _total(settings: Settings) -> int:
    return settings.foreground_sequences + settings.background_sequences


def _most_running(settings: Settings) -> dict[Class, int]:
    if settings.single_class:
        return dict.fromkeys(Class, _total(settings))
    return {Class.FOREGROUND: settings.foreground_sequences, Class.BACKGROUND: settings.background_sequences}
