"""The load client: sends one stream's requests to a target. Event-driven, so it runs alike on real and virtual time.

Everything here runs in the target's own thread (`call_at` actions, and `on_finish` callbacks, which for paced answers
come from another and are handed over): no threads, no sleeping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from dlfp_edge.clock import Clock
from dlfp_edge.errors import DlfpError, QueueFull, UsageError
from dlfp_edge.experiment.prompts import PromptSource, arrival_times
from dlfp_edge.experiment.workload import Stream
from dlfp_edge.runtime import Sampling
from dlfp_edge.task import Finish, OnFinish, OnToken, TaskRecord, TaskSpec

RETRY_S = 0.1
"""A closed-loop client whose request failed waits at least this long, so that a broken target is not hammered."""


class Handle(Protocol):
    """A request under way."""

    @property
    def request_id(self) -> str: ...

    @property
    def record(self) -> TaskRecord: ...

    def cancel(self) -> None: ...


class LoadTarget(Protocol):
    """What load is sent to: an engine, or anything that looks like one."""

    @property
    def clock(self) -> Clock: ...

    def check(self, spec: TaskSpec) -> None: ...

    def submit(
        self,
        spec: TaskSpec,
        *,
        arrived: float | None = None,
        on_token: OnToken | None = None,
        on_finish: OnFinish | None = None,
    ) -> Handle: ...

    def call_at(self, when: float, action: Callable[[], None]) -> None: ...


class ClientEvents(Protocol):
    """What a client tells its owner, in the target's thread."""

    on_token: OnToken | None
    """This alone comes from whichever thread shows the token."""

    def submitted(self, stream: Stream, handle: Handle) -> None:
        """A request was accepted."""
        ...

    def finished(self, stream: Stream, record: TaskRecord) -> None:
        """A request ended; one that a full queue refused comes as a failed record."""
        ...

    def broken(self, error: DlfpError) -> None:
        """The target can take no request of this stream: the prompt does not fit, or the target has closed."""
        ...


_NO_IDS = (
    "conversations go on with the ids of their answers, which this server does not name: "
    "take a workload without 'turns'"
)


class StreamClient:
    """Sends the requests of one stream, as its clients or arrival times say, until `stop` or the stream's limit."""

    def __init__(
        self, target: LoadTarget, stream: Stream, prompts: PromptSource, events: ClientEvents, *, seed: int
    ) -> None:
        self.stream = stream
        self._target = target
        self._prompts = prompts
        self._events = events
        self._seed = seed
        self._stopped = False
        self._pending = 0
        self._said: dict[int, tuple[int, ...]] = {}
        self._live: dict[str, Handle] = {}

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return not self._live

    def done(self) -> bool:
        """Whether every request has ended and none will follow. Never true of a closed loop without a limit."""
        return self._pending == 0 and not self._live

    def check(self) -> None:
        """Raises UsageError, naming the text or stream, where the target could never run one of its prompts."""
        numbers = range(len(self.stream.texts)) if self.stream.texts else [self.stream.longest]
        for number in numbers:
            index, client = divmod(number, self.stream.clients or 1)
            try:
                self._target.check(self._longest(self._spec(client, index)))
            except UsageError as error:
                name = self._prompts(client, index).name
                raise UsageError(f"{name or f'stream {self.stream.name!r}'}: {error}") from None

    def start(self, at: float) -> None:
        """Begin at `at` + the stream's `start_s`, on the target's clock."""
        first = at + self.stream.start_s
        if self.stream.clients is None:
            times = [first + offset for offset in arrival_times(self.stream, self._seed)]
            for index, when in enumerate(times):
                self._schedule(when, 0, index, arrived=when)
            return
        for client in range(self.stream.clients):
            if self._wants(client, 0):
                self._schedule(first, client, 0)

    def stop(self) -> None:
        """Send nothing more; requests under way go on."""
        self._stopped = True
        self._pending = 0

    def cancel(self) -> None:
        """Cancel the requests under way; each still ends with a record."""
        for handle in list(self._live.values()):
            handle.cancel()

    def cancel_waiting(self) -> None:
        """Cancel the requests that wait for the target to start them."""
        for handle in list(self._live.values()):
            if handle.record.started is None:
                handle.cancel()

    def _wants(self, client: int, index: int) -> bool:
        """Whether a closed-loop client has a request of this index: a limit is dealt out evenly over the clients."""
        limit, clients = self.stream.requests, self.stream.clients or 1
        return not self._stopped and (limit is None or index * clients + client < limit)

    def _schedule(self, when: float, client: int, index: int, arrived: float | None = None) -> None:
        self._pending += 1
        self._target.call_at(when, lambda: self._send(client, index, arrived))

    def _send(self, client: int, index: int, arrived: float | None) -> None:
        if self._stopped:
            return
        self._pending -= 1
        spec = self._spec(client, index)
        try:
            handle = self._target.submit(
                spec,
                arrived=arrived,
                on_token=self._events.on_token,
                on_finish=lambda record: self._in_target(
                    record, lambda: self._ended(record, spec.prompt, client, index)
                ),
            )
        except QueueFull as error:
            self._ended(self._refused(spec, arrived, error), spec.prompt, client, index)
        except DlfpError as error:
            self._events.broken(error)
        else:
            if handle.record.finish is None:
                self._live[handle.request_id] = handle
            self._events.submitted(self.stream, handle)

    def _in_target(self, record: TaskRecord, action: Callable[[], None]) -> None:
        """Act in the target's thread, which is not the one in which a paced answer ends."""
        if record.pace is None:
            action()
        else:
            self._target.call_at(self._target.clock.now(), action)

    def _ended(self, record: TaskRecord, prompt: tuple[int, ...], client: int, index: int) -> None:
        self._live.pop(record.request_id, None)
        if self.stream.turns > 1:
            self._said[client] = (*prompt, *record.output_token_ids)
            if record.token_times and not record.output_token_ids:
                self._events.broken(UsageError(_NO_IDS))
        if self.stream.clients is not None and self._wants(client, index + 1):
            pause = max(self.stream.think_s, RETRY_S) if record.failed else self.stream.think_s
            self._schedule(self._target.clock.now() + pause, client, index + 1)
        self._events.finished(self.stream, record)

    def _spec(self, client: int, index: int) -> TaskSpec:
        prompt, stream = self._prompts(client, index), self.stream
        if index % stream.turns:
            prompt = prompt.after(self._said[client])
        return TaskSpec(
            prompt=prompt.tokens,
            task_class=stream.task_class,
            max_tokens=stream.answer_length(index),
            sampling=Sampling(
                temperature=stream.temperature,
                repeat_penalty=stream.repeat_penalty,
                seed=self._seed,
                ignore_eos=stream.runs_past_end,
                grammar=stream.grammar,
            ),
            pace=stream.pace,
            deadline_s=stream.deadline_s,
            label=f"{stream.name}/{client}/{index} {prompt.name}".rstrip(),
            stop=tuple(stream.stop),
        )

    def _longest(self, spec: TaskSpec) -> TaskSpec:
        """The request with as long a prompt as its conversation can come to."""
        missing = (self.stream.longest_prompt or len(spec.prompt)) - len(spec.prompt)
        return replace(spec, prompt=spec.prompt + spec.prompt[-1:] * missing)

    def _refused(self, spec: TaskSpec, arrived: float | None, error: QueueFull) -> TaskRecord:
        now = self._target.clock.now()
        return TaskRecord(
            request_id=f"refused:{spec.label}",
            task_class=spec.task_class,
            label=spec.label,
            prompt_tokens=len(spec.prompt),
            arrived=now if arrived is None else arrived,
            pace=spec.pace,
            finished=now,
            finish=Finish.ERROR,
            error=str(error),
        )
