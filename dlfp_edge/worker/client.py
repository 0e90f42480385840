"""The front of an engine in a worker process: the engine's interface, and what the supervisor of workers tells."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from dlfp_edge.clock import Clock, SystemClock
from dlfp_edge.controls import with_control
from dlfp_edge.errors import DlfpError, RuntimeFailure
from dlfp_edge.given import check_arrival, check_not_in, check_process
from dlfp_edge.handle import Task
from dlfp_edge.limits import Limits
from dlfp_edge.runtime import Capabilities, LoadOptions
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, OnFinish, OnToken, TaskSpec
from dlfp_edge.trace import Snapshot
from dlfp_edge.worker.address import Address
from dlfp_edge.worker.link import Ending, ProcessLink, SocketLink
from dlfp_edge.worker.loop import Loop
from dlfp_edge.worker.messages import CAPABILITIES, LIMITS, OPTIONS, RECORD, SETTINGS, SNAPSHOT, SPEC
from dlfp_edge.worker.notes import Notes
from dlfp_edge.worker.protocol import Message, ProtocolError
from dlfp_edge.worker.questions import Questions
from dlfp_edge.worker.supervisor import Death, Supervisor
from dlfp_edge.worker.tasks import Tasks
from dlfp_edge.worker.tokenizer import Ask, WorkerTokenizer

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
    nobody reads one twice. Submitting while a worker starts queues the task; one that this worker then refuses ends
    with an error. Encoding text waits for the worker. A process made by fork() cannot use the engine.

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
        self.runtime: WorkerModel
        """As the worker that is up, or was last, describes it."""
        self.placement: Placement
        self.controller_name: str
        settings = with_control(settings or Settings())
        self._process = os.getpid()
        self._notes = Notes()
        self.messages: list[str] = self._notes.messages
        self._loop = Loop(self.clock)
        self._questions = Questions()
        self._tokenizer = WorkerTokenizer(self._ask)
        self._limits: Limits
        self._last: Snapshot
        most = settings.queue_limit + settings.foreground_sequences + settings.background_sequences
        self._supervisor = Supervisor(
            self._loop,
            self.clock,
            ProcessLink if address is None else lambda: SocketLink(address),
            {"secret": secret},
            {
                "runtime": runtime,
                "load": OPTIONS.encode(load),
                "settings": SETTINGS.encode(replace(settings, queue_limit=most)),
            },
            self,
        )
        self._tasks = Tasks(self._loop, self.clock, settings, self._notes, self._supervisor.progress)
        self._thread = threading.Thread(target=self._run, name="dlfp-worker-front", daemon=True)
        self._questions.thread = self._thread
        self._thread.start()
        self._loop.post(self._supervisor.start)
        try:
            self._questions.wait_until_open()
        except BaseException:
            self.close()
            raise
        if self.failure is not None:
            raise self.failure

    # --- for callers, from any thread ----------------------------------------------------------------------------

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id; None while there is none, and for one that listens."""
        link = self._supervisor.link
        return None if link is None else link.pid

    @property
    def is_up(self) -> bool:
        """Whether there is a worker that has loaded the model."""
        return self._questions.is_up

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
        check_process(self._process)
        self._limits.check(spec)
        if arrived is not None:
            check_arrival(arrived)
        return self._tasks.submit(spec, self._tokenizer, arrived, on_token, on_finish)

    def check(self, spec: TaskSpec) -> None:
        """Raises UsageError for a task that could never run here. Waits for a worker that is being started."""
        self._limits.check(spec)
        self._ask("check", {"spec": SPEC.encode(replace(spec, label=""))})

    def call_at(self, when: float, action: Callable[[], None]) -> None:
        """Run `action` in this engine's thread when its clock reads `when`. One that raises stops nobody."""
        check_process(self._process)
        self._loop.call_at(when, lambda: self._notes.guard("an action", action))

    def forget_prefixes(self) -> None:
        """Drop the KV cells that ended tasks have left for prompts that begin the same."""
        check_process(self._process)
        self._tasks.forget()

    def hold_background(self, held: bool) -> None:
        """Start no step of background work while held, by this worker or the next; a step that runs is let finish."""
        check_process(self._process)
        self._tasks.hold(held)

    def snapshot(self) -> Snapshot:
        """The engine at this moment, for a live view; while there is no worker, with the figures of the last."""
        check_process(self._process)
        value = self._questions.ask_now("snapshot")
        if value is not None:
            last = SNAPSHOT.decode(value)
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
        if self._tasks.begin_close():
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
            self._notes.say(message)
        self._limits = LIMITS.decode(ready["limits"])
        self._tokenizer.describe(self._limits.vocabulary, ready["end_tokens"])
        capabilities = CAPABILITIES.decode(ready["capabilities"])
        self.runtime = WorkerModel(self._tokenizer, self.clock, capabilities, self._ask)
        self._last = SNAPSHOT.decode(ready["snapshot"])
        link = self._supervisor.link
        assert link is not None
        self._tasks.up(link, self._supervisor.offset_s)
        self._questions.up(link)

    def down(self, ending: Ending) -> None:
        """The worker has died, and another one follows."""
        self._questions.down()
        self._tasks.down(ending)

    def told(self, message: Message) -> None:
        """What became of tasks, and what the worker has to say."""
        if message["kind"] == "notice":
            self._notes.say(message["text"])
        elif message["kind"] == "progress":
            self._tokenizer.learn(message["bytes"])
            for request_id, part in message["parts"]:
                self._tasks.progress(request_id, RECORD.decode(part))
        elif message["kind"] == "finished":
            self._tokenizer.learn(message["bytes"])
            self._tasks.finished(message["task"], RECORD.decode(message["part"]))
        else:
            raise ProtocolError("its kind is unknown")

    def replied(self, message: Message) -> None:
        """An answer somebody may wait for."""
        if message["kind"] == "answer":
            self._questions.answered(message)
        elif message["kind"] == "accepted":
            self._tasks.accepted(message)
        else:
            self._tasks.refused(message)

    def gone(self, failure: DlfpError | None) -> None:
        """There is no worker any more."""
        self.failure = failure
        self._tasks.gone(failure)
        self._questions.gone(failure)
        self._loop.stop()

    # --- the rest ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:  # nobody else would learn that the loop has ended
            self._supervisor.abandon()
            self.gone(error if isinstance(error, DlfpError) else RuntimeFailure(f"the front failed: {error!r}"))

    def _begin_close(self) -> None:
        self._tasks.cancel_waiting()
        self._supervisor.close(CLOSE_S)

    def _ask(self, what: str, fields: dict[str, Any]) -> Any:
        check_process(self._process)
        return self._questions.ask(what, fields)

    def _with_own(self, snapshot: Snapshot) -> Snapshot:
        """A worker's figures with what only the front knows: it may not have every task, nor have seen every end."""
        waiting = self._tasks.waiting()
        return replace(
            snapshot,
            foreground_queued=snapshot.foreground_queued + waiting[Class.FOREGROUND],
            background_queued=snapshot.background_queued + waiting[Class.BACKGROUND],
            background_finished=self._tasks.background_finished,
            messages=tuple(self.messages),
        )
