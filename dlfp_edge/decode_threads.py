"""How many threads foreground decodes get: the fastest count alone, and beside background work the fewest that will do.

Each thread saved goes to the background, so the choice matters much more to it than to the reader: on two CPUs a decode
takes 1.3 to 1.5 times as long on one thread as on two, and with two the background falls from half of its unprotected
rate to a tenth. A probe at load is too short to settle that on a machine whose speed varies by as much within minutes,
so the counts are measured again, in turns, while the background is held to measure decode-only time.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from statistics import median

from dlfp_edge.runtime import Capabilities

SAMPLES = 12
"""Decodes of one thread count that its time is the median of; the probe's figure is the first of them."""

MAX_AGE_S = 10.0


class DecodeThreads:
    """Decode times by thread count, from steps with nothing beside them, and the counts to use.

    A runtime that gives no times, or whose words depend on the count, keeps the count it names.
    """

    def __init__(self, capabilities: Capabilities) -> None:
        self._default = capabilities.decode_threads
        known = capabilities.decode_s_by_threads if capabilities.threads_invariant else {}
        self._times = {threads: deque([seconds], SAMPLES) for threads, seconds in sorted(known.items())}
        self._typical = dict(known)
        self._turn = count()
        self._seen: float | None = None

    @property
    def fastest(self) -> int:
        """The count for decodes with nothing beside them."""
        return min(self._typical, key=self._typical.__getitem__) if self._typical else self._default

    def beside(self, target_s: float | None, alone_s: float | None) -> int:
        """The fewest on which a decode alone keeps the target, else the fastest.

        `alone_s` is what a decode takes on the fastest count.
        """
        if not self._times or target_s is None or not alone_s:
            return self._default
        # Beside background a decode takes up to 1.1 times as long. With that taken off the bound, two CPUs on which one
        # thread takes 1.5 times as long as two were at its edge: the background had 44% over ten windows, 17% in two of
        # them; like this 51% and 46% in the lowest. P99 over solo P99: 1.58 and 1.68.
        bound_s = target_s / alone_s * self._typical[self.fastest]
        return min((threads for threads, time_s in self._typical.items() if time_s <= bound_s), default=self.fastest)

    def in_turn(self) -> int:
        """The count for the next decode of a hold: the fastest and one of the others take turns."""
        others = [threads for threads in self._times if threads != self.fastest]
        turn = next(self._turn)
        return others[turn // 2 % len(others)] if others and turn % 2 else self.fastest

    def observe(self, threads: int, gap_s: float, now: float) -> None:
        """Learn from one decode in a hold."""
        if threads in self._times:
            self._times[threads].append(gap_s)
            self._typical[threads] = median(self._times[threads])
            self._seen = now

    def stale(self, now: float) -> bool:
        """Whether the counts should be compared again."""
        return len(self._times) > 1 and (self._seen is None or now - self._seen > MAX_AGE_S)
