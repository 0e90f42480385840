"""One stretch of load on a target: who is asked, what came of it, and when it ends.

A `TrialLoad` drives the streams of a workload against anything that takes requests, an engine or an endpoint, from its
first request until it has seen enough gaps, its time is up, or every stream with a limit has ended.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event
from typing import cast

from dlfp_edge.clock import Clock
from dlfp_edge.errors import DlfpError, RuntimeFailure
from dlfp_edge.experiment.client import Handle, LoadTarget, StreamClient
from dlfp_edge.experiment.prompts import prompt_source
from dlfp_edge.experiment.session import SessionTarget, is_virtual
from dlfp_edge.experiment.workload import Stream, Workload
from dlfp_edge.runtime import Tokenizer
from dlfp_edge.task import Class, Finish, OnFinish, OnToken, TaskRecord, TaskSpec

POLL_S = 0.1
WAIT_S = 0.05
ENOUGH_GAPS = 1000
FAILURES = 10
"""So many requests that fail one after another end a load: the target is not there."""

DRAIN_S = 20.0
"""How long what spans the end of a load may go on, so that the share of it that counts is known."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was sent. `checksum` is of its ids, how long its answer may be, and its scheduled arrival."""

    checksum: int
    prompt_tokens: int
    max_tokens: int


class Recorder:
    """A target that notes what is asked of another."""

    def __init__(self, target: LoadTarget) -> None:
        self._target = target
        self.start = 0.0
        self.asked: dict[str, Asked] = {}

    @property
    def clock(self) -> Clock:
        return self._target.clock

    def check(self, spec: TaskSpec) -> None:
        self._target.check(spec)

    def call_at(self, when: float, action: Callable[[], None]) -> None:
        self._target.call_at(when, action)

    def submit(
        self,
        spec: TaskSpec,
        *,
        arrived: float | None = None,
        on_token: OnToken | None = None,
        on_finish: OnFinish | None = None,
    ) -> Handle:
        due = None if arrived is None else round(arrived - self.start, 3)
        checksum = zlib.crc32(repr((spec.prompt, spec.max_tokens, due)).encode())
        self.asked[spec.label] = Asked(checksum, len(spec.prompt), spec.max_tokens)
        return self._target.submit(spec, arrived=arrived, on_token=on_token, on_finish=on_finish)


@dataclass(frozen=True, slots=True)
class Limits:
    """A load ends at so many foreground gaps, contended ones where there is background work, or after `cap_s`."""

    gaps: int = ENOUGH_GAPS
    cap_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """What came of a load, on the target's clock; `ended_by` is "gaps", "cap", "requests", "failures" or "stopped".

    `records` are all its requests, those cancelled at its end among them. Tokens after `end` do not count. `settled`
    says whether what background work did at the end was known in time, `failing` whether the last requests failed, as
    many in a row as there are clients: the target had gone by then.
    """

    start: float
    end: float
    ended_by: str
    records: Sequence[TaskRecord]
    asked: dict[str, Asked]
    settled: bool
    failing: bool = False

    @property
    def gone(self) -> bool:
        """Whether the target was not there any more: it failed one request after another."""
        return self.failing or self.ended_by == "failures"

    @property
    def duration_s(self) -> float:
        """Measured time."""
        return self.end - self.start


class TrialLoad:
    """One load, from `begin` to `finished`. Everything but `stop` and `on_token` runs in the target's thread."""

    def __init__(
        self,
        target: LoadTarget,
        workload: Workload,
        tokenizer: Tokenizer,
        *,
        seed: int,
        limits: Limits,
        settled: Callable[[float, Sequence[TaskRecord]], bool] = lambda end, live: True,
    ) -> None:
        """`settled(end, live)` says whether no background work of the `live` requests spans the `end` of the load."""
        self._target = Recorder(target)
        self._limits, self._settled = limits, settled
        self._background = bool(workload.of_class(Class.BACKGROUND))
        self._gaps = self._failures = 0
        self._start = 0.0
        self._end: float | None = None
        self._ended_by = "stopped"
        self._closed = False
        self._in_time = True
        self._records: list[TaskRecord] = []
        self._live: dict[str, TaskRecord] = {}
        self._error: DlfpError | None = None
        self.on_token: OnToken | None = self._token
        self._clients = [
            StreamClient(self._target, stream, prompt_source(workload, stream, tokenizer, seed), self, seed=seed)
            for stream in workload.streams
        ]
        for client in self._clients:
            client.check()

    def begin(self) -> None:
        """Send the first requests now."""
        self._start = self._target.start = self._target.clock.now()
        for client in self._clients:
            client.start(self._start)
        if math.isfinite(self._limits.cap_s):
            self._target.call_at(self._start + self._limits.cap_s, lambda: self._close("cap"))

    def end(self) -> None:
        """End at once, whatever is under way."""
        self._close("stopped")
        self._cancel()

    def done(self) -> bool:
        """Whether the load has ended and nothing of it is under way."""
        return self._closed and all(client.idle for client in self._clients)

    @property
    def part(self) -> float:
        """How far the load has come, from 0 to 1."""
        elapsed = self._target.clock.now() - self._start if self._start else 0.0
        return min(1.0, max(self._gaps / self._limits.gaps, elapsed / self._limits.cap_s))

    def outcome(self) -> Loaded:
        """What came of it. Raises what broke it."""
        if self._error is not None:
            raise self._error
        assert self._end is not None
        failing = self._failures >= min(FAILURES, sum(client.stream.clients or 1 for client in self._clients))
        return Loaded(self._start, self._end, self._ended_by, self._records, self._target.asked, self._in_time, failing)

    def submitted(self, stream: Stream, handle: Handle) -> None:
        """A client's request was accepted."""
        if handle.record.finish is None:
            self._live[handle.request_id] = handle.record

    def finished(self, stream: Stream, record: TaskRecord) -> None:
        """A request ended."""
        self._live.pop(record.request_id, None)
        self._records.append(record)
        if record.finish is not Finish.CANCELLED:
            self._failures = self._failures + 1 if record.finish is Finish.ERROR else 0
        if self._failures >= FAILURES:
            self._close("failures")
        limited = [client for client in self._clients if client.stream.requests is not None]
        if limited and all(client.done() for client in limited):
            self._close("requests")

    def broken(self, error: DlfpError) -> None:
        """The target takes no more."""
        self._error = self._error or error
        self.end()

    def _token(self, record: TaskRecord, index: int) -> None:
        if record.task_class is not Class.FOREGROUND or not index or self._end is not None:
            return
        self._gaps += (record.contended[index] or not self._background) and not getattr(record, "merged_events", 0)
        if self._gaps >= self._limits.gaps:
            self._target.call_at(self._target.clock.now(), lambda: self._close("gaps"))

    def _close(self, why: str) -> None:
        """End the measured time; load goes on until what spans this moment has ended."""
        if self._end is None:
            self._end, self._ended_by = self._target.clock.now(), why
            self._wait_until_settled()

    def _wait_until_settled(self) -> None:
        assert self._end is not None
        if self._closed:
            return
        now, live = self._target.clock.now(), [r for r in self._live.values() if r.task_class is Class.BACKGROUND]
        if not live or self._settled(self._end, live):
            self._cancel()
        elif now >= self._end + DRAIN_S:
            self._in_time = False
            self._cancel()
        else:
            self._target.call_at(now + POLL_S, self._wait_until_settled)

    def _cancel(self) -> None:
        self._closed = True
        for client in self._clients:
            client.stop()
            client.cancel()


def wait_for(target: LoadTarget, load: TrialLoad, stopped: Callable[[], bool]) -> None:
    """Wait until the load is done, or was stopped; on virtual time, run the target until then.

    Raises RuntimeFailure where the target fails.
    """
    if is_virtual(target):
        cast(SessionTarget, target).run_until(lambda: load.done() or stopped())
    pause = Event()
    while not (load.done() or stopped()):
        failure = getattr(target, "failure", None)
        if failure is not None:
            raise RuntimeFailure(f"the target failed: {failure}") from failure
        pause.wait(WAIT_S)
