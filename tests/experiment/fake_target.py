"""A target on virtual time that serves one request after another, each for a fixed time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from dlfp_edge.clock import VirtualClock
from dlfp_edge.errors import DlfpError
from dlfp_edge.experiment.client import Handle
from dlfp_edge.experiment.workload import Stream
from dlfp_edge.task import Finish, OnFinish, OnToken, TaskRecord, TaskSpec


@dataclass
class FakeHandle:
    """A request whose end the fake target has planned."""

    record: TaskRecord
    end: Callable[[Finish], None]

    @property
    def request_id(self) -> str:
        return self.record.request_id

    def cancel(self) -> None:
        self.end(Finish.CANCELLED)


@dataclass
class FakeTarget:
    """`refusals` are raised by the next submissions, in order; None accepts one."""

    service_s: float = 1.0
    finish: Finish = Finish.LENGTH
    refusals: list[DlfpError | None] = field(default_factory=list)
    specs: list[TaskSpec] = field(default_factory=list)
    clock: VirtualClock = field(default_factory=VirtualClock)

    def __post_init__(self) -> None:
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._free_at = 0.0

    def call_at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._order), action))

    def check(self, spec: TaskSpec) -> None:
        """Any task can run."""

    def submit(
        self,
        spec: TaskSpec,
        *,
        arrived: float | None = None,
        on_token: OnToken | None = None,
        on_finish: OnFinish | None = None,
    ) -> FakeHandle:
        if self.refusals and (refusal := self.refusals.pop(0)) is not None:
            raise refusal
        self.specs.append(spec)
        now = self.clock.now()
        record = TaskRecord(
            request_id=str(next(self._order)),
            task_class=spec.task_class,
            label=spec.label,
            prompt_tokens=len(spec.prompt),
            arrived=now if arrived is None else arrived,
        )

        def end(finish: Finish) -> None:
            if record.finish is None:
                record.finish, record.finished = finish, self.clock.now()
                if on_finish is not None:
                    on_finish(record)

        self._free_at = max(self._free_at, now) + self.service_s
        self.call_at(self._free_at, lambda: end(self.finish))
        return FakeHandle(record, end)

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._timers and self._timers[0][0] <= until:
            when, _, action = heapq.heappop(self._timers)
            self.clock.advance_to(when)
            action()
        self.clock.advance_to(until)


@dataclass
class Journal:
    """What a client said, in order."""

    on_token: OnToken | None = None
    records: list[TaskRecord] = field(default_factory=list)
    handles: list[Handle] = field(default_factory=list)
    errors: list[DlfpError] = field(default_factory=list)

    def submitted(self, stream: Stream, handle: Handle) -> None:
        self.handles.append(handle)

    def finished(self, stream: Stream, record: TaskRecord) -> None:
        self.records.append(record)

    def broken(self, error: DlfpError) -> None:
        self.errors.append(error)
