"""The same law where work runs in lanes: what it turns is the background lane's share of the threads.

    s[t+1] = clamp(s[t] * clamp(T / L[t], 1/2, 2), s_min, s_max)

L is the median of the newest contended foreground gaps, since one gap says more about noise than about the share: a
lane's share acts on every gap alike, while a chunk acts on the one step that holds it. The share is real-valued and
rounded to whole threads on output, never below one.

Unlike a smaller chunk, fewer threads need not make a gap shorter: at lowest priority the system's scheduler has done
most of it already, and on two CPUs one background thread with a core to itself slowed decodes more than two that took
turns on what the foreground left. So the law checks what it does: a cut that shortened gaps by less than 5% is taken
back, and not tried again for a while.
"""

from __future__ import annotations

from collections import deque
from math import inf
from statistics import median

from dlfp_edge.control.estimate import is_shift
from dlfp_edge.control.port import Observation, Update, View, clamp

RATIO_LIMIT = 2.0
WINDOW = 16
"""Gaps in the median; at 15 ms a gap a quarter of a second, about half a background step."""

HELPS = 0.95
"""A cut is worth its throughput where it makes gaps this many times as long, or shorter."""

RETRY_WINDOWS = 100
"""For how many windows (about half a minute) what a share did is taken to hold."""


class Share:
    """The default for lanes. `T` seconds (None: the engine's target); `s_min` threads."""

    def __init__(self, *, T: float | None = None, s_min: float = 1) -> None:
        self.name = "dlfp"
        self.resets = 0
        self.steered = True
        self._target_s, self._min = T, s_min
        self._share: float | None = None
        self._most = self._ceiling = 1.0
        self._gaps: deque[float] = deque(maxlen=WINDOW)
        self._threads = 0
        self._last_target_s = 0.0
        self._windows = 0
        self._seen: dict[int, tuple[float, int]] = {}

    @property
    def state(self) -> float | None:
        return self._share

    def budget(self, view: View, now: float) -> int | None:
        self._most = float(view.most)
        self._ceiling = max(self._ceiling, self._most)
        self._share = max(self._most if self._share is None else self._share, self._min)
        return max(1, round(min(self._share, self._most)))  # there may be more again soon

    def observe(self, observation: Observation) -> Update:
        target_s = self._target_s if self._target_s is not None else observation.target_s
        if not target_s or self._share is None or observation.gap_s <= 0:
            return Update(self._share, changed=False, reason="no target measured yet")
        if is_shift(target_s / (self._last_target_s or target_s)):
            self._gaps.clear()
            self._seen.clear()  # other readers, or another speed
            self._last_target_s = target_s
        self._last_target_s = self._last_target_s or target_s
        if observation.budget != self._threads:
            self._gaps.clear()  # a window says what one count does
        self._threads = observation.budget
        self._gaps.append(observation.gap_s)
        if len(self._gaps) < WINDOW:
            return Update(self._share, changed=False, reason="too few gaps yet")
        gap_s = median(self._gaps)
        self._gaps.clear()
        before, self._share = self._share, self._turned(observation.budget, gap_s, target_s)
        return Update(
            self._share, changed=self._share != before, reason=None if self._share != before else "at its limit"
        )

    def _turned(self, threads: int, gap_s: float, target_s: float) -> float:
        """The share after a window whose median was `gap_s` on `threads` threads."""
        assert self._share is not None
        self._windows += 1
        if is_shift(gap_s / self._gap_at(threads, gap_s)):
            self._seen.clear()  # what other counts gave was on a machine of another speed
        self._seen[threads] = gap_s, self._windows
        enough = any(self._gap_at(count, inf) <= target_s for count in range(1, threads + 1))
        for more in sorted(self._seen, reverse=True):
            if not enough and more > threads and gap_s > HELPS * self._gap_at(more, gap_s / HELPS):
                return float(more)
        ratio = clamp(target_s / gap_s, 1 / RATIO_LIMIT, RATIO_LIMIT)
        wanted = clamp(self._share * ratio, self._min, self._ceiling)
        if round(wanted) < threads and self._gap_at(round(wanted), 0.0) > HELPS * gap_s:
            return float(threads)
        for more in range(round(wanted), threads, -1):
            if self._gap_at(more, 0.0) <= target_s:
                return min(wanted, float(more))
        return wanted if round(wanted) <= threads else float(threads)

    def _gap_at(self, threads: int, unknown: float) -> float:
        """The median gap last seen at a thread count; `unknown` where that is too long ago."""
        gap_s, window = self._seen.get(threads, (unknown, self._windows))
        return gap_s if self._windows - window < RETRY_WINDOWS else unknown
