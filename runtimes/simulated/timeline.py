"""Virtual time: lanes that run side by side, each as fast as the others leave it, and whatever ends next."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Protocol

from dlfp_edge.clock import Clock, VirtualClock
from dlfp_edge.runtime import StepResult

from .contention import Demand, granted
from .cost import Cost, Slowdown
from .flight import Flight


class Runner(Protocol):
    """A lane, as the timeline sees it."""

    running: Flight | None

    def demand(self) -> Demand:
        """What the running step asks for."""
        ...

    def set_pace(self, now: float, cores: float, stretch: float) -> None:
        """From `now` on the running step has `cores`, and everything takes `stretch` as long."""
        ...

    def end(self, now: float) -> None:
        """The running step has ended."""
        ...


class Timeline:
    """Moves the clock from one event to the next. Paces change only at events, so between them progress is linear."""

    def __init__(self, clock: Clock, cost: Cost, slowdowns: Sequence[Slowdown]) -> None:
        self.clock = clock
        self.runners: list[Runner] = []
        self._cost = cost
        self._slowdowns = slowdowns
        self._edges = sorted({edge for item in slowdowns for edge in (item.from_s, item.to_s)}, reverse=True)
        self._posted: list[tuple[float, int, StepResult]] = []
        self._posts = 0
        self._ready: list[StepResult] = []

    def post(self, result: StepResult, available: float) -> None:
        """Deliver `result` at `available`."""
        self._posts += 1
        heapq.heappush(self._posted, (available, self._posts, result))

    def catch_up(self) -> None:
        """Let everything happen that ended by what the clock reads."""
        self._run(self.clock.now(), until_ready=False)

    def advance(self, until: float | None) -> list[StepResult]:
        """Move to the first result, or to `until`, and return what has been delivered."""
        self._run(math.inf if until is None else until, until_ready=True)
        if not self._ready and until is not None:
            self._advance_to(until)
        ready, self._ready = self._ready, []
        return ready

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing is to be delivered."""
        return not self._ready and not self._posted and all(runner.running is None for runner in self.runners)

    def repace(self, now: float) -> None:
        """Give every running step the pace that the lanes beside it leave."""
        running = [runner for runner in self.runners if runner.running is not None]
        stretch = self._stretch(now)
        demands = [runner.demand() for runner in running]
        shares = granted(demands, self._cost.trickle)
        for runner, demand, share in zip(running, demands, shares, strict=True):
            others = (sum(shares) - share) / len(demand.cores)
            runner.set_pace(now, share, stretch * (1.0 + self._cost.bandwidth * others))

    def next_event(self) -> float | None:
        """When something happens next by itself; None for never."""
        times = [runner.running.ends_at for runner in self.runners if runner.running is not None]
        times += [self._posted[0][0]] if self._posted else []
        return min(times, default=None)

    def _advance_to(self, when: float) -> None:
        """Bring a virtual clock to a moment; a real one has passed it."""
        if isinstance(self.clock, VirtualClock):
            self.clock.advance_to(when)

    def _stretch(self, now: float) -> float:
        return math.prod(item.factor for item in self._slowdowns if item.from_s <= now < item.to_s)

    def _run(self, limit: float, until_ready: bool) -> None:
        while not (until_ready and self._ready):
            when = min((runner.running.ends_at for runner in self.runners if runner.running), default=math.inf)
            if self._posted and self._posted[0][0] <= min(when, limit):
                self._deliver()
            elif self._edges and self._edges[-1] <= min(when, limit):
                self._cross_edge(self._edges.pop())
            elif when <= limit and when < math.inf:
                self._end(when)
            else:
                return

    def _deliver(self) -> None:
        """Take every result that is due at the time of the first."""
        when = self._posted[0][0]
        self._advance_to(when)
        while self._posted and self._posted[0][0] <= when:
            self._ready.append(heapq.heappop(self._posted)[2])

    def _cross_edge(self, when: float) -> None:
        self._advance_to(when)
        self.repace(when)

    def _end(self, when: float) -> None:
        self._advance_to(when)
        for runner in self.runners:
            if runner.running and runner.running.ends_at <= when:
                runner.end(when)
        self.repace(when)
