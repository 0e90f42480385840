"""Keeps a worker running: starts it, asks whether it lives, starts another when it has died, or gives up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from dlfp_edge.clock import Clock
from dlfp_edge.errors import DlfpError, RuntimeFailure, UsageError
from dlfp_edge.worker.link import Ending, Link
from dlfp_edge.worker.loop import Loop
from dlfp_edge.worker.protocol import Message, ProtocolError, check_hello, hello

_log = logging.getLogger(__name__)

BEAT_S = 1.0
"""How often a worker is asked for a sign of life."""

SILENT_BEATS = 10
"""A worker that gave none to so many questions is killed. Time in which the front itself stood still does not count."""

MOST_DEATHS = 8
"""Deaths in a row without a task that ended between them, after which no worker is started again."""

MOST_LOADING_DEATHS = 3
"""Deaths in a row before the model was loaded, after which there is no use either."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
"""Before a restart: none after a first death, then this, doubled each time."""


@dataclass(slots=True)
class Death:
    """A worker's end. Times are seconds on the front's clock; `ready` and `load_s` are those of the next worker."""

    how: str
    at: float
    ready: float | None = None
    load_s: float | None = None


class Owner(Protocol):
    """What hears of the worker, in the loop's thread but for `replied`."""

    def up(self, ready: Message) -> None:
        """A worker is ready, with nothing to do yet."""
        ...

    def down(self, ending: Ending) -> None:
        """The worker has died; another one follows."""
        ...

    def told(self, message: Message) -> None:
        """A message of a worker that is up."""
        ...

    def replied(self, message: Message) -> None:
        """An answer somebody waits for, in the thread that reads."""
        ...

    def gone(self, failure: DlfpError | None) -> None:
        """There is no worker any more, as asked (None) or because there is no use."""
        ...


class Supervisor:
    """The worker behind an engine. Everything here runs in the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        clock: Clock,
        connect: Callable[[], Link],
        greeting: dict[str, Any],
        opening: dict[str, Any],
        owner: Owner,
    ) -> None:
        self.link: Link | None = None
        self.deaths: list[Death] = []
        self.last_lines: tuple[str, ...] = ()
        self.offset_s = 0.0
        """How far this clock is ahead of the worker's."""
        self._loop = loop
        self._clock = clock
        self._connect = connect
        self._greeting = greeting
        self._opening = opening
        self._owner = owner
        self._greeted_at = 0.0
        self._in_a_row = 0
        self._loading_deaths = 0
        self._silent = 0
        self._closing = False
        self._up = False
        self._was_up = False
        self._busy = False

    def start(self) -> None:
        """Start a worker; `up` follows, or `gone`."""
        if self._closing:
            return
        try:
            link = self._connect()
        except (OSError, DlfpError) as error:
            if not self._was_up:
                self._end(RuntimeFailure(str(error)))
            else:
                self._died(Ending(str(error)), loading=False)
            return
        self.link, self._silent, self._busy = link, 0, False
        link.start(lambda message: self._received(link, message))
        self._greeted_at = self._clock.now()
        link.post("hello", **hello(), **self._greeting)
        self._beat(link)

    def progress(self) -> None:
        """A task has ended: whatever kills workers, this one got further."""
        self._in_a_row = 0

    def close(self, patience_s: float) -> None:
        """End the worker in order, or by force once `patience_s` are over; `gone` follows."""
        self._closing = True
        link = self.link
        if link is None or not self._up:
            self._end(None)
            return
        link.post("close")
        self._loop.call_at(self._clock.now() + patience_s, lambda: link.kill("it did not close"))

    def _received(self, link: Link, message: Message | None) -> None:
        if message is None or message["kind"] not in ("accepted", "refused", "answer"):
            self._loop.post(lambda: self._handle(link, message))
            return
        try:
            self._owner.replied(message)
        except Exception as error:
            link.kill(_unreadable(message, error))

    def _handle(self, link: Link, message: Message | None) -> None:
        """Take a message. What raises over it must not end the engine: the worker is not what it should be."""
        if link is not self.link:
            return
        try:
            self._take(link, message)
        except Exception as error:
            _log.error("a message of the worker could not be handled", exc_info=True)
            link.kill(_unreadable(message, error))

    def _take(self, link: Link, message: Message | None) -> None:
        if message is None or message["kind"] == "closed":
            self._hung_up(link)
        elif message["kind"] == "pong":
            self._silent = 0
        elif message["kind"] == "hello":
            self._greeted(link, message)
        elif message["kind"] == "ready":
            self._ready(message)
        elif message["kind"] == "failed":
            self._failed(link, message)
        else:
            self._owner.told(message)

    def _greeted(self, link: Link, message: Message) -> None:
        if self._up:
            raise ProtocolError("it was said before")
        try:
            check_hello(message, "worker")
        except ProtocolError as error:  # the next worker would be of the same version
            self._end(RuntimeFailure(str(error)))
            return
        self.offset_s = self._offset_s(float(message["now"]))
        link.post("open", **self._opening)

    def _ready(self, message: Message) -> None:
        self._up = self._was_up = True
        self._loading_deaths = 0
        self._opening["load"]["known"] = message["capabilities"]
        if self.deaths:
            self.deaths[-1].ready, self.deaths[-1].load_s = self._clock.now(), float(message["load_s"])
        self._owner.up(message)

    def _failed(self, link: Link, message: Message) -> None:
        """The worker said itself what is wrong: a mistake of the caller's or of the protocol stays one next time."""
        if message["blame"] == "usage":
            self._end(UsageError(message["error"]))
        elif message["blame"] == "protocol" or (message["blame"] == "busy" and not self._was_up):
            self._end(RuntimeFailure(message["error"]))
        else:
            self._busy = message["blame"] == "busy"
            link.kill(message["error"])

    def _hung_up(self, link: Link) -> None:
        ending = link.ending()
        self.last_lines = link.last_lines()
        self.link = None
        if self._closing:
            self._end(None)
        else:
            self._died(ending, loading=not self._up and not self._busy)

    def _died(self, ending: Ending, *, loading: bool) -> None:
        """A worker has gone, or is not to be had; `loading` says that it died over the model."""
        self._in_a_row += 1
        self._loading_deaths += loading
        self._up = False
        self.deaths.append(Death(ending.how, self._clock.now()))
        if self._in_a_row >= MOST_DEATHS or self._loading_deaths >= MOST_LOADING_DEATHS:
            words = f"; its last words: {_telling(self.last_lines)}" if self.last_lines else ""
            deaths = f"{self._in_a_row} in a row died and no task ended"
            self._end(RuntimeFailure(f"no worker stays alive: {deaths}, the last of {ending.how}{words}"))
            return
        self._owner.down(ending)
        pause_s = 0.0 if self._in_a_row <= 1 else min(FIRST_PAUSE_S * 2 ** (self._in_a_row - 2), LONGEST_PAUSE_S)
        self._loop.call_at(self._clock.now() + pause_s, self.start)

    def abandon(self) -> None:
        """Leave no worker behind: the loop is about to end."""
        self._closing = True
        if self.link is not None:
            self.link.kill("the front failed")

    def _offset_s(self, theirs: float) -> float:
        """None where their time fits into this clock's round trip.

        It does on one machine: a monotonic clock is the same to every process of it (Linux, macOS and Windows alike).
        """
        now = self._clock.now()
        return 0.0 if self._greeted_at <= theirs <= now else now - theirs

    def _end(self, failure: DlfpError | None) -> None:
        """No worker from here on."""
        self._closing, self._up = True, False
        link, self.link = self.link, None
        if link is not None:
            link.kill("the engine was closed")
            link.ending()
        self._owner.gone(failure)

    def _beat(self, link: Link) -> None:
        if link is not self.link:
            return
        if self._silent >= SILENT_BEATS:
            link.kill(f"it gave no sign of life for {SILENT_BEATS * BEAT_S:g} s")
            return
        self._silent += 1
        link.post("ping")
        self._loop.call_at(self._clock.now() + BEAT_S, lambda: self._beat(link))


def _unreadable(message: Message | None, error: Exception) -> str:
    kind = str((message or {}).get("kind"))[:40]
    return f"it sent a '{kind}' message that cannot be read: {' '.join(repr(error).split())[:200]}"


def _telling(lines: tuple[str, ...]) -> str:
    """Of what a worker last wrote, the line that says most: not where it was, but what came over it."""
    return next((line for line in reversed(lines) if "error" in line.lower()), lines[-1])
