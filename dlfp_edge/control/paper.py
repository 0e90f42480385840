"""Equation 2 of the paper as it stands, and the two variants the paper tried: on another clock, and bounded.

    c[t+1] = clamp(floor_128(c[t] * T / L[t]), c_min, c_max)

What the paper leaves open, and what was chosen here:

- *Whose cap is c[t]?* With several steps in flight, the cap that was in force for the step observed.
- *Per request or per step?* Per step, over all prefills in it.
- *A capped step that did not fill its cap* (the tail of a prompt) still updates, as "after a guarded cycle" says.
- *A step of decodes alone* is not a guarded cycle: no update.
- *No decoder active*: the state is set to c_initial at the next scheduler call, and isolated prefill is not capped.
- *A floor to 0* is lifted to c_min by the clamp.
- *An observation of 0 s* (a clock too coarse) is no information: no update.
- *An interrupted step* is no observation.
"""

from __future__ import annotations

import math

from dlfp_edge.control.port import Observation, Update, View, clamp

QUANTUM = 128
"""Tokens the paper rounds the cap down to."""


class Paper:
    """Equation 2 on completed step times, with the paper's values (T = 80 ms, 3072, 1024, 6144).

    `T` seconds; `c_initial`, `c_min`, `c_max` tokens. `max_change` bounds one update to that fraction of the cap (the
    paper's completion-aware revision does not give its bound; 0.25 is ours); None leaves it unbounded.
    """

    def __init__(
        self,
        *,
        T: float = 0.080,
        c_initial: float = 3072,
        c_min: float = 1024,
        c_max: float = 6144,
        max_change: float | None = None,
    ) -> None:
        self.name = "dlfp"
        self.resets = 0
        self.steered = False
        self._target_s, self._initial, self._min, self._max = T, c_initial, c_min, c_max
        self._max_change = max_change
        self._cap = c_initial

    @property
    def state(self) -> float | None:
        return self._cap

    def budget(self, view: View, now: float) -> int | None:
        if view.decoders == 0 and self._cap != self._initial:
            self._cap = self._initial
            self.resets += 1
        return int(self._cap)

    def observe(self, observation: Observation) -> Update:
        return self._follow(observation.budget, observation.gap_s)

    def _follow(self, cap: float, observed_s: float) -> Update:
        if observed_s <= 0:
            return Update(self._cap, changed=False, reason="an observation of 0 s")
        wanted = cap * self._target_s / observed_s
        if self._max_change is not None:
            wanted = clamp(wanted, cap * (1 - self._max_change), cap * (1 + self._max_change))
        before = self._cap
        self._cap = clamp(math.floor(wanted / QUANTUM) * QUANTUM, self._min, self._max)
        return Update(self._cap, changed=self._cap != before, reason=None if self._cap != before else "same cap")


class Cadence(Paper):
    """Equation 2 on the interval between scheduler calls: the paper's prototype, kept for comparison only.

    Where steps are submitted ahead of completion this interval is not the time the device took.
    """

    def __init__(self, **parameters: float) -> None:
        super().__init__(**parameters)
        self.name = "dlfp-cadence"

    def observe(self, observation: Observation) -> Update:
        if observation.interval_s is None:
            return Update(self._cap, changed=False, reason="no later scheduler call yet")
        return self._follow(observation.budget, observation.interval_s)
