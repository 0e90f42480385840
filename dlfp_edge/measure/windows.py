"""When background work is held so that solo latency is measured in the same run as contended latency."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SoloWindows:
    """Alternate `contended_s` of everything with `solo_s` of foreground alone, contended first.

    Nothing counts as solo in the first `settle_s` of a solo window, while the background's last step may still run.
    """

    contended_s: float = 5.0
    solo_s: float = 2.5
    settle_s: float = 0.5


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The windows of a run that began at `start`, as moments on its clock.

    Without `windows` the whole run is solo where `alone` says that one stream is all there is, else contended.
    """

    start: float
    windows: SoloWindows | None = None
    alone: bool = False

    def solo(self, begin: float, end: float) -> bool:
        """Whether [begin, end] lies wholly in one solo window, after it settled."""
        if self.windows is None:
            return self.alone
        cycle, _ = self._split(begin)
        opened = self.start + cycle * self._period + self.windows.contended_s
        return begin >= opened + self.windows.settle_s and end <= opened + self.windows.solo_s

    def contended_s(self, begin: float, end: float) -> float:
        """How much of [begin, end] lies in contended windows."""
        return max(0.0, self._contended_until(end) - self._contended_until(begin))

    def contended_at(self, moment: float) -> bool:
        """Whether `moment` lies in a contended window."""
        return self.windows is None or self._split(moment)[1] < self.windows.contended_s

    def boundary(self, index: int) -> tuple[float, bool]:
        """The change of window number `index` (from 0), and whether it opens a solo window. Needs `windows`."""
        assert self.windows is not None
        origin = self.start + index // 2 * self._period
        return (origin + self.windows.contended_s, True) if index % 2 == 0 else (origin + self._period, False)

    @property
    def _period(self) -> float:
        assert self.windows is not None
        return self.windows.contended_s + self.windows.solo_s

    def _split(self, moment: float) -> tuple[int, float]:
        since = moment - self.start
        cycle = math.floor(since / self._period)
        return cycle, since - cycle * self._period

    def _contended_until(self, moment: float) -> float:
        if self.windows is None:
            return max(self.start, moment) - self.start
        if moment <= self.start:
            return 0.0
        cycle, into = self._split(moment)
        return cycle * self.windows.contended_s + min(into, self.windows.contended_s)
