"""Sends a workload to an endpoint and keeps the record of every request: the load generator alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Event

from dlfp_edge.errors import DlfpError, RuntimeFailure
from dlfp_edge.experiment.artefacts import Artefacts
from dlfp_edge.experiment.client import Handle, StreamClient
from dlfp_edge.experiment.endpoint import Endpoint
from dlfp_edge.experiment.prompts import prompt_source
from dlfp_edge.experiment.workload import Stream, Workload
from dlfp_edge.runtime import Sampling, Tokenizer
from dlfp_edge.task import Class, OnToken, TaskRecord, TaskSpec

POLL_S = 0.1
LAST_ANSWERS_S = 10.0
"""How long foreground answers that are under way when the time is up may go on."""

WARMUP_TOKENS = 16
_WARMUP_SEED = 1_000_003
"""Added to the run's seed, so that no warm-up leaves a prefix that a measured prompt begins with."""


@dataclass(slots=True)
class Load:
    """What was measured: the records of all requests, in the order they ended, without those of warm-ups.

    `start` and `end` are on the client's clock; `stopped` says the run was cut short.
    """

    workload: Workload
    start: float
    end: float | None = None
    records: list[TaskRecord] = field(default_factory=list)
    stopped: bool = False

    @property
    def duration_s(self) -> float:
        """The measured time so far."""
        return 0.0 if self.end is None else self.end - self.start


class Generator:
    """One run of a workload against an endpoint that is started, from `warm_up` and `run` to its records.

    The run ends once every stream that has `requests` has ended, or after `duration_s` (None: the workload's): then
    nothing more is sent, foreground answers under way have `LAST_ANSWERS_S` more, and what is left is cancelled. Every
    request goes to `artefacts` too. `watch` sees the run now and then, in the thread that waits for it.

    Raises UsageError for what the endpoint's dialect cannot carry.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        workload: Workload,
        tokenizer: Tokenizer,
        *,
        seed: int = 0,
        duration_s: float | None = None,
        artefacts: Artefacts | None = None,
        watch: Callable[[Load], None] | None = None,
    ) -> None:
        self.on_token: OnToken | None = None
        self._endpoint = endpoint
        self._workload = workload
        self._tokenizer = tokenizer
        self._seed = seed
        self._duration_s = workload.duration_s if duration_s is None else duration_s
        self._artefacts = artefacts
        self._watch = watch
        self._stop_asked = False
        self._changed = Event()
        self._error: DlfpError | None = None
        self._time_over = False
        self._load = Load(workload, endpoint.clock.now())
        self._clients = [
            StreamClient(endpoint, stream, prompt_source(workload, stream, tokenizer, seed), self, seed=seed)
            for stream in workload.streams
        ]
        for client in self._clients:
            client.check()

    def stop(self) -> None:
        """Cut the run short: what was measured is kept. For signal handlers and other threads."""
        self._stop_asked = True

    def warm_up(self, requests: int) -> None:
        """Send so many short requests one after another, which nothing counts; with `stop` not all of them.

        Raises RuntimeFailure where one fails.
        """
        streams = self._workload.streams
        for index in range(requests):
            stream = streams[index % len(streams)]
            prompts = prompt_source(self._workload, stream, self._tokenizer, self._seed + _WARMUP_SEED)
            spec = TaskSpec(
                prompt=prompts(0, index).tokens,
                task_class=stream.task_class,
                max_tokens=min(WARMUP_TOKENS, stream.answer_length(index)),
                sampling=Sampling(seed=self._seed, ignore_eos=stream.runs_past_end),
            )
            handle = self._endpoint.submit(spec, on_finish=lambda _: self._changed.set())
            self._wait_for(lambda handle=handle: handle.record.finish is not None)  # type: ignore[misc]
            record = handle.record
            if self._stop_asked:
                return
            if record.failed:
                raise RuntimeFailure(f"a warm-up request failed: {record.error}")

    def run(self) -> Load:
        """Send the workload and wait for its end. Raises RuntimeFailure if the endpoint fails on the way."""
        start = self._load.start = self._endpoint.clock.now()
        self._endpoint.call_at(start, lambda: self._begin(start))
        self._wait_for(lambda: self._load.end is not None)
        self._load.stopped = self._stop_asked
        self._endpoint.call_at(start, self._close)
        self._wait_for(self._drained, whatever=True)
        if self._error is not None:
            raise self._error
        return self._load

    def _wait_for(self, condition: Callable[[], bool], *, whatever: bool = False) -> None:
        """`whatever` says that being asked to stop does not end the wait."""
        while not condition() and (whatever or not self._stop_asked):
            if self._endpoint.failure is not None:
                raise RuntimeFailure(f"sending load failed: {self._endpoint.failure}") from self._endpoint.failure
            self._changed.wait(POLL_S)
            self._changed.clear()
            if self._watch is not None:
                self._watch(self._load)

    def _drained(self) -> bool:
        return self._load.end is not None and all(client.idle for client in self._clients)

    # Everything below runs in the endpoint's thread.

    def _begin(self, start: float) -> None:
        if self._stop_asked:
            return
        for client in self._clients:
            client.start(start)
        if self._duration_s is not None:
            self._endpoint.call_at(start + self._duration_s, self._time_is_up)

    def _time_is_up(self) -> None:
        self._time_over = True
        for client in self._foreground():
            client.stop()
        self._endpoint.call_at(self._endpoint.clock.now() + LAST_ANSWERS_S, self._close)
        self._end_if_due()

    def _end_if_due(self) -> None:
        limited = [client for client in self._clients if client.stream.requests is not None]
        answered = bool(limited) and all(client.done() for client in limited)
        if answered or (self._time_over and all(client.idle for client in self._foreground())):
            self._close()

    def _close(self) -> None:
        """The measured time is over; what is still under way is cancelled."""
        if self._load.end is None:
            self._load.end = self._endpoint.clock.now()
        for client in self._clients:
            client.stop()
            client.cancel()
        self._changed.set()

    def _foreground(self) -> Iterator[StreamClient]:
        return (client for client in self._clients if client.stream.task_class is Class.FOREGROUND)

    def submitted(self, stream: Stream, handle: Handle) -> None:
        """A request was sent."""

    def finished(self, stream: Stream, record: TaskRecord) -> None:
        """A request has ended."""
        self._load.records.append(record)
        if self._artefacts is not None:
            self._artefacts.request(record)
        if self._load.end is None:
            self._end_if_due()
        self._changed.set()

    def broken(self, error: DlfpError) -> None:
        """A stream cannot go on: the run ends and raises this."""
        self._error = self._error or error
        self._close()
