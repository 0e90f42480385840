"""Where the drivers of all lanes leave their results, and where the engine waits for them."""

from __future__ import annotations

import threading

from dlfp_edge.clock import Clock
from dlfp_edge.runtime import StepResult

LONGEST_WAIT_S = 3600.0
"""Of one call to the system, which takes no time too far off; the wait itself has no limit."""


class Mailbox:
    """A queue of step results that many drivers fill and one engine empties."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._results: list[StepResult] = []
        self._woken = False
        self._changed = threading.Condition()

    def post(self, result: StepResult) -> None:
        """Leave a result; called by drivers."""
        with self._changed:
            self._results.append(result)
            self._changed.notify()

    def forget(self, lane: str) -> None:
        """Drop what a lane that is gone has left."""
        with self._changed:
            self._results = [result for result in self._results if result.lane != lane]

    def wake(self) -> None:
        """Make a running or the next `take` return at once."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def take(self, until: float | None) -> list[StepResult]:
        """Wait for results, a wake or the time `until` (None: no limit) and return what there is."""
        with self._changed:
            while not self._results and not self._woken:
                left_s = None if until is None else until - self._clock.now()
                if left_s is not None and left_s <= 0:
                    break
                self._changed.wait(None if left_s is None else min(left_s, LONGEST_WAIT_S))
            self._woken = False
            results, self._results = self._results, []
            return results
