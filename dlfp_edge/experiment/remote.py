"""A request at an endpoint: its record, and what the events of its stream make of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

from dlfp_edge.clock import Clock
from dlfp_edge.experiment.dialect import Dialect, Said
from dlfp_edge.experiment.exchange import ExchangeFailed
from dlfp_edge.playout import CALM_S, Playout
from dlfp_edge.task import Class, Finish, OnFinish, OnToken, TaskRecord, TaskSpec

_log = logging.getLogger(__name__)

Failure = Literal["http", "engine"]
"""Whose failure it was: the way there and back, or what answers at its end."""


@dataclass(slots=True)
class RemoteRecord(TaskRecord):
    """How a request at an endpoint went. Times are seconds on the client's monotonic clock.

    `started` is when the server said that it computes the prompt; where it does not tell, when the request was sent.
    `output_token_ids` are the ids that the server named: fewer than `token_times` where it named none or not all.
    `merged_events` carried several tokens at once, or tokens that were not counted: the gaps of such a request say
    nothing. `usage_prompt_tokens` and `usage_output_tokens` are the server's own counts. `progress` holds when the
    client heard how many prompt tokens were computed, `engine_token_s` the server's own time of each token since the
    first; both are empty where it does not tell.
    """

    http_status: int | None = None
    failure: Failure | None = None
    merged_events: int = 0
    usage_prompt_tokens: int | None = None
    usage_output_tokens: int | None = None
    progress: list[tuple[float, int]] = field(default_factory=list)
    engine_token_s: list[float] = field(default_factory=list)


def clock_differences_s(record: TaskRecord) -> list[float]:
    """How much later than by the server's own clock the client had each token.

    The two clocks have no start in common: the token that came fastest is taken to have come at once.
    """
    if not isinstance(record, RemoteRecord) or len(record.engine_token_s) != len(record.token_times):
        return []
    if record.merged_events or not record.token_times:
        return []
    apart = [seen - said for seen, said in zip(record.token_times, record.engine_token_s, strict=True)]
    return [each - min(apart) for each in apart]


class Presence:
    """Whether background requests are under way at an endpoint, and when one last was."""

    def __init__(self) -> None:
        self._live = 0
        self._last = float("-inf")

    def enter(self) -> None:
        """A background request begins."""
        self._live += 1

    def leave(self, now: float) -> None:
        """One has ended."""
        self._live -= 1
        self._last = max(self._last, now)

    def since(self, moment: float) -> bool:
        """Whether there was one at any time from that moment on."""
        return self._live > 0 or self._last >= moment


class RemoteRequest:
    """A request under way. Everything but `cancel` happens in the endpoint's loop."""

    def __init__(
        self,
        spec: TaskSpec,
        record: RemoteRecord,
        dialect: Dialect,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        presence: Presence,
        cancel: Callable[[RemoteRequest], None],
        on_token: OnToken | None,
        on_finish: OnFinish | None,
    ) -> None:
        self.spec = spec
        self.record = record
        self._dialect = dialect
        self._clock = clock
        self._loop = loop
        self._presence = presence
        self._cancel = cancel
        self._on_token = on_token
        self._on_finish = on_finish
        self._playout = Playout(spec.pace)
        self._last_token_at = record.arrived
        self._heard = record.arrived
        self._said_finish: tuple[Finish, float] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._next: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def request_id(self) -> str:
        """The id this request has in every record."""
        return self.record.request_id

    def cancel(self) -> None:
        """End the request; what came of it stays in its record. Ending an ended request does nothing."""
        self._cancel(self)

    def begin(self, events: AsyncGenerator[tuple[float, bytes], None], silence_s: float) -> asyncio.Task[None]:
        """Send the request; the task ends once its connection is closed, which is after the record."""
        now = self._heard = self._clock.now()
        if not self._dialect.tells_progress:
            self.record.started = now
        if self.record.task_class is Class.BACKGROUND:
            self._presence.enter()
        if self.spec.deadline_s is not None:
            self._deadline = self._loop.call_at(
                self.record.arrived + self.spec.deadline_s, lambda: self.end(Finish.DEADLINE)
            )
        self._silence = self._loop.call_at(now + silence_s, lambda: self._check_silence(silence_s))
        self._task = self._loop.create_task(self._follow(events))
        return self._task

    def end(self, finish: Finish, error: str | None = None, failure: Failure | None = None) -> None:
        """Nothing follows what is already there. A request that ended otherwise than asked shows the rest at once.

        Of a paced answer that is cancelled nothing more is shown, as by an engine.
        """
        record, ended = self.record, self.record.finish is not None
        if finish is Finish.CANCELLED and self.spec.pace and self._playout.waits:
            self._playout.drop()
            record.keep_shown()
            del record.engine_token_s[len(record.shown_times) :]
        elif ended:
            return
        now = self._clock.now()
        record.finish, record.finished, record.error, record.failure = finish, now, error, failure
        for timer in (self._deadline, self._silence):
            if timer is not None:
                timer.cancel()
        if self._task is not None and not ended:
            if record.task_class is Class.BACKGROUND:
                self._presence.leave(now)
            if asyncio.current_task(self._loop) is not self._task:  # which closes its connection itself
                self._task.cancel()
        if finish not in (Finish.STOP, Finish.LENGTH):
            self._playout.hurry()
        self._show_due()

    async def _follow(self, events: AsyncGenerator[tuple[float, bytes], None]) -> None:
        """Read the stream until it has ended; whatever comes becomes one clear reason in the record."""
        try:
            async with aclosing(events):
                async for now, data in events:
                    self._heard = now
                    if self._take(self._read(data), now):
                        return
            self._broke_off()
        except ExchangeFailed as error:
            self.end(Finish.ERROR, str(error), "http")
        except asyncio.CancelledError:
            self.end(Finish.CANCELLED)
        except Exception as error:
            _log.error("the answer to %s could not be followed", self.request_id, exc_info=error)
            self.end(Finish.ERROR, f"the answer could not be followed: {_one_line(error)}", "http")

    def _read(self, data: bytes) -> Said:
        try:
            return self._dialect.read(data)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ExchangeFailed(
                f"an event is not of the {self._dialect.name} dialect ({_one_line(error)}): {data[:80]!r}"
            ) from None

    def _broke_off(self) -> None:
        if self._said_finish is not None:  # some servers close without a last word
            self._complete()
        else:
            said = f"after {len(self.record.token_times)} tokens"
            self.end(Finish.ERROR, f"the stream ended {said}, before the answer did", "http")

    def _check_silence(self, silence_s: float) -> None:
        """Pings between events do not count: a server that only keeps a connection open answers nobody."""
        if self._clock.now() - self._heard >= silence_s:
            self.end(Finish.ERROR, f"no word from the server for {silence_s:g} s", "http")
        else:
            self._silence = self._loop.call_at(self._heard + silence_s, lambda: self._check_silence(silence_s))

    def _take(self, said: Said, now: float) -> bool:
        """Account for an event; whether it was the last one."""
        record = self.record
        if said.error is not None:
            self.end(Finish.ERROR, f"the server said: {said.error}", "engine")
            return True
        if said.computed is not None:
            record.progress.append((now, said.computed))
            record.started = now if record.started is None else record.started
        if said.cached is not None:
            record.cached_prompt_tokens = said.cached
        record.stop_string = said.stop_string or record.stop_string
        if said.prompt_tokens is not None:
            record.usage_prompt_tokens = said.prompt_tokens
        if said.output_tokens is not None:
            record.usage_output_tokens = said.output_tokens
        self._add(said, now)
        if said.finish is not None:
            self._said_finish = (said.finish, now)
        if said.last:
            if self._said_finish is None:
                self.end(Finish.ERROR, "the stream ended without saying why the answer did", "http")
            else:
                self._complete()
        return said.last

    def _add(self, said: Said, now: float) -> None:
        """The tokens of an event."""
        here = len(self.record.token_times)
        count = len(said.ids) or int(bool(said.text))
        if said.generated is not None:
            count = max(0, said.generated - here)
        self.record.merged_events += count > 1
        self._tokens(count, said, now)

    def _tokens(self, count: int, said: Said, now: float) -> None:
        """So many tokens came at once, of which the last one bears what was said."""
        record = self.record
        contended = self._presence.since(self._last_token_at)
        if count:
            self._last_token_at = now
            record.started = now if record.started is None else record.started
            record.output_token_ids.extend(said.ids[-count:])
            record.pieces.extend([*[""] * (count - 1), said.text])
        for _ in range(count):
            record.token_times.append(now)
            record.contended.append(contended)
            if said.engine_s is not None:
                record.engine_token_s.append(said.engine_s)
            self._playout.add(now)
        self._show_due()

    def _complete(self) -> None:
        """The server says that the answer is complete: hold its count against the tokens that came."""
        assert self._said_finish is not None
        record, (finish, at) = self.record, self._said_finish
        said = record.usage_output_tokens
        missing = 0 if said is None else said - len(record.token_times)
        # An end token comes with the word that the answer has ended; any other was hidden in an event.
        record.merged_events += missing != 0 and not (missing == 1 and finish is Finish.STOP)
        self._tokens(max(0, missing), Said(), at)
        count, asked = len(record.token_times), self.spec.max_tokens
        if finish is Finish.LENGTH and count < asked:
            why = f"the server ended the answer at {count} of {asked} tokens: is its context too short?"
            self.end(Finish.ERROR, why, "engine")
        else:
            self.end(finish)

    def _show_due(self) -> None:
        """Release the tokens whose time has come, in order; without a pace at the moment each came."""
        record, now = self.record, self._clock.now()
        self._playout.contend(self._presence.since(now - CALM_S))
        while (at := self._playout.next_at()) is not None and at <= now:
            index, due = len(record.shown_times), self._playout.show()
            record.shown_times.append(now if self.spec.pace else record.token_times[index])
            if self.spec.pace:
                record.due_times.append(due)
            if self._on_token is not None:
                self._call(self._on_token, record, index)
        if self._next is not None:
            self._next.cancel()
        self._next = None if at is None else self._loop.call_at(at, self._show_due)
        self._close_if_shown()

    def _close_if_shown(self) -> None:
        """Tell that the request has ended, once nothing of it is left to show."""
        record = self.record
        if record.finish is None or len(record.shown_times) < len(record.token_times):
            return
        on_finish, self._on_finish = self._on_finish, None
        if on_finish is not None:
            self._call(on_finish, record)

    def _call(self, callback: Callable[..., None], *arguments: object) -> None:
        """A caller's callback that raises must not cost anybody else's request."""
        try:
            callback(*arguments)
        except Exception as error:
            _log.error("a callback of %s failed", self.request_id, exc_info=error)


def _one_line(error: Exception) -> str:
    return " ".join(repr(error).split())[:200]
