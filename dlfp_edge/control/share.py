"""The same law where work runs in lanes: what it turns is the background lane's share of the threads.

    s[t+1] = clamp(s[t] * clamp(T / L[t], 1/2, 2), s_min, s_max)

L is the median of the newest contended foreground gaps, since one gap says more about noise than about the share: a
lane's share acts on every gap alike, while a chunk acts on the one step that holds it. The share is real-valued and
rounded down to whole threads on output, never below one.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from dlfp_edge.control.port import Observation, Update, View, clamp

RATIO_LIMIT = 2.0
WINDOW = 16
"""Gaps in the median; at 15 ms a gap a quarter of a second, which is also one background step."""


class Share:
    """The shipped law for lanes. `T` seconds (None: the engine's target); `s_min` threads."""

    def __init__(self, *, T: float | None = None, s_min: float = 1) -> None:
        self.name = "dlfp"
        self.resets = 0
        self.steered = True
        self._target_s, self._min = T, s_min
        self._share: float | None = None
        self._most = 1.0
        self._gaps: deque[float] = deque(maxlen=WINDOW)

    @property
    def state(self) -> float | None:
        return self._share

    def budget(self, view: View, now: float) -> int | None:
        self._most = float(view.most)
        self._share = self._most if self._share is None else clamp(self._share, self._min, self._most)
        return max(1, int(self._share))

    def observe(self, observation: Observation) -> Update:
        target_s = self._target_s if self._target_s is not None else observation.target_s
        self._gaps.append(observation.gap_s)
        if target_s is None or self._share is None:
            return Update(self._share, changed=False, reason="no target measured yet")
        if len(self._gaps) < WINDOW:
            return Update(self._share, changed=False, reason="too few gaps yet")
        ratio = clamp(target_s / median(self._gaps), 1 / RATIO_LIMIT, RATIO_LIMIT)
        self._gaps.clear()
        before, self._share = self._share, clamp(self._share * ratio, self._min, self._most)
        return Update(
            self._share, changed=self._share != before, reason=None if self._share != before else "at its limit"
        )
