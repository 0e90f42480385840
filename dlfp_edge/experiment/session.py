"""Runs a workload on an engine and measures it, with solo windows interleaved where both classes are at work."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Event
from typing import Any, NamedTuple, Protocol, TypeAlias

from dlfp_edge.errors import DlfpError
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

POLL_S = 0.1
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
    """Token `index` of a record was released to its reader."""

    record: TaskRecord
    index: int


class Finished(NamedTuple):
    """A request ended, or a full queue refused it."""

    stream: Stream
    record: TaskRecord


class Window(NamedTuple):
    """From now on background work is held (`solo`), or no longer."""

    solo: bool


SessionEvent: TypeAlias = Submitted | TokenShown | Finished | Window
OnEvent = Callable[[SessionEvent], None]
"""Called in the engine's thread: return at once."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run measured. `records` are the newest requests, in the order they ended; `stopped` says it was cut short."""

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
    return engine.clock.name == "virtual"


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

    The run ends once every stream that has `requests` has ended, or after `duration_s` (None: the workload's) as soon
    as no foreground request is under way; until then every stream goes on, so that the last answers meet the same load
    as the first. What is still under way is then cancelled. `windows` None measures no solo latency. `scale` multiplies
    token counts. `artefacts` gets every step and every request.

    Raises UsageError for a workload that does not suit the model.
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
        on_event: OnEvent | None = None,
        artefacts: Artefacts | None = None,
    ) -> None:
        self._engine = engine
        self._workload = workload.scaled(scale)
        self._seed, self._scale = seed, scale
        self._duration_s = workload.duration_s if duration_s is None else duration_s
        self._windows = windows
        self._on_event = on_event
        self._artefacts = artefacts
        self._stop_asked = False
        self._over = Event()
        self._error: DlfpError | None = None
        self._records: deque[TaskRecord] = deque(maxlen=KEPT_RECORDS)
        self.on_token: OnToken | None = self._token_shown if on_event else None
        tokenizer = engine.runtime.tokenizer
        self._clients = [
            StreamClient(engine, stream, prompt_source(self._workload, stream, tokenizer, seed), self, seed=seed)
            for stream in self._workload.streams
        ]

    def stop(self) -> None:
        """Cut the run short: `run` cancels what is under way and returns. For signal handlers and other threads."""
        self._stop_asked = True

    def run(self) -> Outcome:
        """Run to the end. A real-time engine works in its own thread meanwhile, a virtual-time one in this one."""
        raise NotImplementedError
