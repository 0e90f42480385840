"""gmlx's prefill ticks: a chunk is halved until the time it will take fits the budget.

    c = c_max, halved while c * s > T and c > c_min      s: seconds a token of the last chunk took

Published in asher/gmlx 0.1.2 (2026), with T = 500 ms, from a chunk of 2048 tokens (that of mlx-vlm, on which it is
built) down to 256. Before a chunk was measured, and while nobody decodes, chunks are full.

What differs here: gmlx divides a chunk's time by the tokens it was given, here it is by those that ran, without short
last pieces of prompts; and the time is that of the step, with the decodes that share it.
"""

from __future__ import annotations

from dlfp_edge.control.port import Observation, Update, View
from dlfp_edge.control.rate import token_s


class Tick:
    """`T` seconds of a step beside decodes; chunks of `c_max` tokens are halved down to `c_min`."""

    resets = 0
    steered = False

    def __init__(self, *, T: float = 0.5, c_min: float = 256, c_max: float = 2048) -> None:
        self.name = "tick"
        self._tick_s, self._min, self._max = T, c_min, c_max
        self._cap = c_max

    @property
    def state(self) -> float | None:
        return self._cap

    def budget(self, view: View, now: float) -> int | None:
        return max(1, int(min(self._cap, view.most)))

    def observe(self, observation: Observation) -> Update:
        each_s = token_s(observation, self._min)
        if each_s is None:
            return Update(self._cap, changed=False, reason="too few tokens for a rate")
        before, self._cap = self._cap, self._max
        while self._cap * each_s > self._tick_s and self._cap > self._min:
            self._cap = max(self._cap / 2, self._min)
        return Update(self._cap, changed=self._cap != before, reason=None if self._cap != before else "same cap")
