"""One thread in which the front does everything that must not happen at once."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable

from dlfp_edge.clock import Clock

Action = Callable[[], None]


class Loop:
    """Runs actions one after another, in the order they were posted or when they are due. Any thread may post."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._posted: deque[Action] = deque()
        self._timers: list[tuple[float, int, Action]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._stopped = False

    def post(self, action: Action) -> None:
        """Run `action` soon."""
        with self._changed:
            self._posted.append(action)
            self._changed.notify()

    def call_at(self, when: float, action: Action) -> None:
        """Run `action` when the clock reads `when`."""
        with self._changed:
            heapq.heappush(self._timers, (when, next(self._order), action))
            self._changed.notify()

    def stop(self) -> None:
        """Run nothing more; called by an action."""
        self._stopped = True

    def run(self) -> None:
        """Run actions until one calls `stop`."""
        while not self._stopped:
            self._next()()

    def _next(self) -> Action:
        with self._changed:
            while True:
                if self._timers and self._timers[0][0] <= self._clock.now():
                    return heapq.heappop(self._timers)[2]
                if self._posted:
                    return self._posted.popleft()
                self._changed.wait(max(0.0, self._timers[0][0] - self._clock.now()) if self._timers else None)
