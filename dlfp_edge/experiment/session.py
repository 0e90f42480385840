"""Runs a workload on an engine and measures it, with solo windows interleaved where both classes are at work."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, NamedTuple, Protocol, TypeAlias

from dlfp_edge.errors import DlfpError, RuntimeFailure
from dlfp_edge.experiment.artefacts import Artefacts
from dlfp_edge.experiment.client import Handle, LoadTarget, StreamClient
from dlfp_edge.experiment.prompts import prompt_source
from dlfp_edge.experiment.workload import Stream, Workload
from dlfp_edge.measure.summary import RunFacts, build_summary
from dlfp_edge.measure.tally import RunTally
from dlfp_edge.measure.windows import SoloWindows, WindowPlan
from dlfp_edge.runtime import Runtime
from dlfp_edge.settings import Placement
from dlfp_edge.task import Class, OnToken, TaskRecord
from dlfp_edge.trace import Counters, Snapshot, StepRecord

KEPT_RECORDS = 10_000
"""The newest ended requests an outcome keeps; totals cover all of them."""

VIRTUAL = "virtual"
"""The name of a clock that moves only as the engine's loop runs."""

POLL_S = 0.1
LAST_ANSWERS_S = 10.0
"""How long foreground answers that are under way when the time is up may go on; what was shown by then counts."""

LAST_STEP_S = 10.0
"""How long a run waits for the background step that spans its end, so that the step's share of work counts."""

DEFAULT_WINDOWS = SoloWindows()


class SessionTarget(LoadTarget, Protocol):
    """What a session needs of an engine."""

    on_step: Callable[[StepRecord], None] | None

    @property
    def runtime(self) -> Runtime: ...

    @property
    def placement(self) -> Placement: ...

    @property
    def controller_name(self) -> str: ...

    @property
    def counters(self) -> Counters: ...

    @property
    def failure(self) -> Exception | None: ...

    def start(self) -> None: ...

    def hold_background(self, held: bool) -> None: ...

    def run_until(self, done: Callable[[], bool]) -> None: ...

    def snapshot(self) -> Snapshot: ...

    def close(self) -> None: ...


class Submitted(NamedTuple):
    """A request was accepted; `handle` is the engine's task."""

    stream: Stream
    handle: Handle


class TokenShown(NamedTuple):
    """A record's token at `position` was released to its reader."""

    record: TaskRecord
    position: int


class Finished(NamedTuple):
    """A request ended, or a full queue refused it."""

    stream: Stream
    record: TaskRecord


class Window(NamedTuple):
    """From now on background work is held (`solo`), or no longer."""

    solo: bool


SessionEvent: TypeAlias = Submitted | TokenShown | Finished | Window
OnEvent = Callable[[SessionEvent], None]
"""Called in the engine's thread, of a paced token in the one that shows it: return at once."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run measured.

    `records` are the newest requests, in the order they ended; `stopped` says the run was cut short.
    """

    facts: RunFacts
    tally: RunTally
    counters: Counters
    records: deque[TaskRecord]
    stopped: bool

    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`; `dlfp_edge.measure.summary.Summary` is its schema."""
        return build_summary(self.facts, self.tally, self.counters)


def is_virtual(engine: LoadTarget) -> bool:
    """Whether the engine's time is virtual: it is then run in the calling thread and never started."""
    return engine.clock.name == VIRTUAL


@contextlib.contextmanager
def running(engine: SessionTarget) -> Iterator[None]:
    """Start the engine, unless its time is virtual, and close it at the end."""
    try:
        if not is_virtual(engine):
            engine.start()
        yield
    finally:
        engine.close()


def run_workload(
    engine: SessionTarget,
    workload: Workload,
    *,
    seed: int = 0,
    scale: float = 1.0,
    duration_s: float | None = None,
    windows: SoloWindows | None = DEFAULT_WINDOWS,
    on_event: OnEvent | None = None,
    artefacts: Artefacts | None = None,
) -> Outcome:
    """Run a workload to its end and return what was measured; arguments and errors as for `Session`."""
    session = Session(
        engine,
        workload,
        seed=seed,
        scale=scale,
        duration_s=duration_s,
        windows=windows,
        on_event=on_event,
        artefacts=artefacts,
    )
    return session.run()


class Session:
    """One run of a workload on an engine that runs (or whose time is virtual), from `run` to its outcome.

    The run ends once every stream that has `requests` has ended. After `duration_s` (None: the workload's) foreground
    requests are sent no more and those that wait are cancelled; the run ends with the last that is under way, or
    `LAST_ANSWERS_S` later; background goes on until then, so that the last answers meet the same load as the first, and
    is then cancelled. `windows` None measures no solo latency.
    `scale` multiplies token counts. `artefacts`, which can be set until `run`, gets every step and every request. With
    `cut` the time is up for foreground answers under way too: what was shown of them counts, and an answer that would
    take minutes holds nobody.

    Raises UsageError for a workload that does not suit the model, where a prompt that does not fit is named before any
    is sent; RuntimeFailure if the engine fails on the way.
    """

    def __init__(
        self,
        engine: SessionTarget,
        workload: Workload,
        *,
        seed: int = 0,
        scale: float = 1.0,
        duration_s: float | None = None,
        windows: SoloWindows | None = DEFAULT_WINDOWS,
        cut: bool = False,
        on_event: OnEvent | None = None,
        artefacts: Artefacts | None = None,
    ) -> None:
        self._engine = engine
        self._workload = workload.scaled(scale)
        self._seed, self._scale = seed, scale
        self._duration_s = workload.duration_s if duration_s is None else duration_s
        self._windows = windows
        self._cut = cut
        self._on_event = on_event
        self.artefacts = artefacts
        self._stop_asked = False
        self._ended = False
        self._changed = Event()
        self._error: DlfpError | None = None
        self._records: deque[TaskRecord] = deque(maxlen=KEPT_RECORDS)
        self._tally: RunTally
        self._facts: RunFacts
        self._counters: Counters
        self.on_token: OnToken | None = self._token_shown if on_event else None
        tokenizer = engine.runtime.tokenizer
        self._clients = [
            StreamClient(engine, stream, prompt_source(self._workload, stream, tokenizer, seed), self, seed=seed)
            for stream in self._workload.streams
        ]
        for client in self._clients:
            client.check()

    def stop(self) -> None:
        """Cut the run short: `run` cancels what is under way and returns. For signal handlers and other threads."""
        self._stop_asked = True

    def run(self) -> Outcome:
        """Run to the end. A real-time engine works in its own thread meanwhile, a virtual-time one in this one."""
        start = self._engine.clock.now()
        self._tally = RunTally(self._plan(start))
        self._engine.on_step = self._stepped
        try:
            self._engine.call_at(start, lambda: self._begin(start))
            self._wait_for(lambda: self._ended or self._stop_asked)
            self._engine.call_at(start, self._end)
            self._wait_for(lambda: self._ended and all(client.idle for client in self._clients))
        finally:
            self._engine.on_step = None
        if self._error is not None:
            raise self._error
        return Outcome(self._facts, self._tally, self._counters, self._records, self._stop_asked)

    def _plan(self, start: float) -> WindowPlan:
        streams, foreground = self._workload.streams, self._workload.of_class(Class.FOREGROUND)
        if len(foreground) == len(streams):
            return WindowPlan(start, alone=len(streams) == 1 and streams[0].clients == 1)
        return WindowPlan(start, self._windows if foreground else None)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        if is_virtual(self._engine):
            self._engine.run_until(condition)
            return
        while not condition():
            if self._engine.failure is not None:
                raise RuntimeFailure(f"the engine failed: {self._engine.failure}") from self._engine.failure
            self._changed.wait(POLL_S)  # a signal handler sets a flag only: it must not take the event's lock
            self._changed.clear()

    # Everything below runs in the engine's thread.

    def _begin(self, start: float) -> None:
        for client in self._clients:
            client.start(start)
        if self._tally.plan.windows is not None:
            self._schedule_window(0)
        if self._duration_s is not None:
            self._engine.call_at(start + self._duration_s, self._time_is_up)

    def _schedule_window(self, index: int) -> None:
        when, solo = self._tally.plan.boundary(index)

        def change() -> None:
            if self._tally.end is None:
                self._engine.hold_background(solo)
                self._tell(Window(solo))
                self._schedule_window(index + 1)

        self._engine.call_at(when, change)

    def _time_is_up(self) -> None:
        for client in self._of_class(Class.FOREGROUND):
            client.stop()
        if self._cut and self._tally.end is None:
            self._close(self._engine.clock.now())
            return
        for client in self._of_class(Class.FOREGROUND):
            client.cancel_waiting()
        self._engine.call_at(self._engine.clock.now() + LAST_ANSWERS_S, self._cut_answers)
        self._end_if_due()

    def _cut_answers(self) -> None:
        for client in self._of_class(Class.FOREGROUND):
            client.cancel()

    def _end_if_due(self) -> None:
        limited = [client for client in self._clients if client.stream.requests is not None]
        answered = bool(limited) and all(client.done() for client in limited)
        now, tally = self._engine.clock.now(), self._tally
        timed_out = self._duration_s is not None and now >= tally.plan.start + self._duration_s
        if tally.end is None and (answered or (timed_out and _all_idle(self._of_class(Class.FOREGROUND)))):
            self._close(now)

    def _close(self, now: float) -> None:
        """End the measured time, and the run as soon as the background step that spans this moment has ended."""
        self._tally.close(now)
        self._engine.hold_background(False)
        if _all_idle(self._of_class(Class.BACKGROUND)):
            self._end()
        else:
            self._engine.call_at(now + LAST_STEP_S, self._end)

    def _end(self) -> None:
        """Stop measuring and cancel what is left. What the engine does from here on is in no total."""
        if self._ended:
            return
        self._ended = True
        if self._tally.end is None:
            self._tally.close(self._engine.clock.now())
            self._engine.hold_background(False)
        self._engine.on_step = None
        self._counters = _copy(self._engine.counters)
        self._facts = self._describe()
        for client in self._clients:
            client.stop()
            client.cancel()
        self._changed.set()

    def _describe(self) -> RunFacts:
        snapshot = self._engine.snapshot()
        return RunFacts(
            workload=self._workload.name,
            seed=self._seed,
            scale=self._scale,
            placement=self._engine.placement.value,
            controller=self._engine.controller_name,
            target_s=snapshot.target_s,
            classes=frozenset(stream.task_class for stream in self._workload.streams),
            messages=snapshot.messages,
        )

    def _of_class(self, task_class: Class) -> list[StreamClient]:
        return [client for client in self._clients if client.stream.task_class is task_class]

    def submitted(self, stream: Stream, handle: Handle) -> None:
        """A client's request was accepted."""
        self._tell(Submitted(stream, handle))

    def finished(self, stream: Stream, record: TaskRecord) -> None:
        """A client's request ended."""
        self._records.append(record)
        self._tally.add(record)
        if self.artefacts is not None:
            self.artefacts.request(record)
        self._tell(Finished(stream, record))
        self._end_if_due()
        self._changed.set()

    def broken(self, error: DlfpError) -> None:
        """A client cannot go on: the run ends and raises this."""
        self._error = self._error or error
        self._end()

    def _stepped(self, record: StepRecord) -> None:
        self._tally.add_step(record)
        if self.artefacts is not None:
            self.artefacts.step(record)
        background = any(segment.task_class == Class.BACKGROUND for segment in record.segments)
        if self._tally.end is not None and background and record.completed >= self._tally.end:
            self._end()

    def _token_shown(self, record: TaskRecord, index: int) -> None:
        self._tell(TokenShown(record, index))

    def _tell(self, event: SessionEvent) -> None:
        if self._on_event is not None:
            self._on_event(event)


def _all_idle(clients: list[StreamClient]) -> bool:
    return all(client.idle for client in clients)


def _copy(counters: Counters) -> Counters:
    return replace(
        counters,
        preemption_s=counters.preemption_s.copy(),
        plan_s=counters.plan_s.copy(),
        step_s=counters.step_s.copy(),
    )
