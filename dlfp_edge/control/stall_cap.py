"""oMLX's cap: as many tokens as the best rate seen so far computes in the longest stall that decodes should see.

    c = clamp(floor_64(T * r), c_min, c_max)      r: the highest rate of any chunk so far, a running maximum

Published in jundot/omlx, pull request 2633 (2026), with T = 500 ms, 512 tokens before anything is measured, at least
256, the usual chunk of 2048 at most, and multiples of 64. A maximum instead of a mean, since rates measured beside
decodes would otherwise shrink the cap that they are then measured at.

What differs here: oMLX runs a chunk and the decodes one after the other, and times the chunk alone. Here they share a
step, and the rate counts the whole of it, so that the stall with the decode in it is what stays below T. Where c_min is
set below 64, as slow devices need it, the cap is in multiples of that: coarser ones would leave nothing to choose. oMLX
also makes prefill wait after a chunk until decodes have had half of its time again; in shared steps each has a decode.
"""

from __future__ import annotations

from dlfp_edge.control.port import Observation, Update, View, clamp
from dlfp_edge.control.rate import token_s

GRID = 64
"""Tokens the cap is rounded down to."""


class StallCap:
    """`T` seconds a step may stall decodes; `c_initial` tokens until one was measured, `c_min` and `c_max` after."""

    resets = 0
    steered = False

    def __init__(self, *, T: float = 0.5, c_initial: float = 512, c_min: float = 256, c_max: float = 2048) -> None:
        self.name = "stall-cap"
        self._stall_s, self._min, self._max = T, c_min, c_max
        self._grid = min(GRID, c_min)
        self._best_per_s = 0.0
        self._cap = clamp(c_initial, c_min, c_max)

    @property
    def state(self) -> float | None:
        return self._cap

    def budget(self, view: View, now: float) -> int | None:
        return max(1, int(min(self._cap, view.most)))

    def observe(self, observation: Observation) -> Update:
        each_s = token_s(observation, self._min)
        if each_s is None:
            return Update(self._cap, changed=False, reason="too few tokens for a rate")
        if 1 / each_s <= self._best_per_s:
            return Update(self._cap, changed=False, reason="not the best rate")
        self._best_per_s = 1 / each_s
        tokens = min(self._stall_s * self._best_per_s, self._max)
        before, self._cap = self._cap, clamp(tokens - tokens % self._grid, self._min, self._max)
        return Update(self._cap, changed=self._cap != before, reason=None if self._cap != before else "same cap")
