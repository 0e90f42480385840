"""Equation 2 for small devices: the same law, with what quantisation and short steps break repaired.

    w[t]   = p[t] * clamp(m[t] * T / L[t], 1/2, 2)
    c[t+1] = clamp(c[t] + g * (w[t] - c[t]), c_min, c_max)      g = 1/2 where L[t] > m[t] * T, else 1/4

Where the paper's form and this one differ:

- The state is real-valued; only the output is quantised, so that small corrections are not rounded away.
- The ratio is taken from the tokens that ran, p[t], not from the cap: a short last chunk says nothing about the cap.
- The cap grows only from steps that filled it; a step over the target always shrinks it.
- It goes half the way down and a quarter of the way up: one quick step is noise more often than room, and one slow step
  more often the machine's than the cap's. A cap that follows each all the way is, on average, too small.
- A step the backstop cut short is an observation too: it took at least as long as it ran.
- T bounds the slow gaps, not the typical one. The law steers typical steps to m * T, and m follows how often a gap
  passes 1.1 T: it shrinks by `MARGIN_STEP` at each that does and regains 1/200 of that at each that does not, so that
  about one gap in 200 passes. It begins cautiously, at 0.85. On a machine with even steps m is 1 in the end; where
  steps of equal work vary, it is what their tail leaves.
- Quantisation rounds the *total* of the step (decodes and chunk) down to the runtime's kernel tile, never to nothing
  and not at all below one tile; it is skipped where it would give up more than an eighth of the step.
- After a pause the state stays at the last settled cap instead of going back to c_initial.
- Without a measured target (no decode yet) the initial cap stands and nothing is learned. c_initial is what the engine
  predicts to fit the target beside the decodes, where it can predict.
- The cap goes along with a target that is relative to what this many decodes take: their own time and what is left of
  the target beside them are in proportion.

The paper's other open cases are answered as in `dlfp_edge.control.paper`.
"""

from __future__ import annotations

from dlfp_edge.control.port import Observation, Update, View, clamp

RATIO_LIMIT = 2.0
"""One observation at most doubles or halves the cap."""

GROWTH, SHRINKAGE = 0.25, 0.5

TAIL, TAIL_SHARE = 1.1, 1 / 200
"""The multiple of the target that counts as slow, and the share of gaps that may be."""

MARGIN_STEP, LEAST_MARGIN = 0.06, 0.5

FIRST_MARGIN = 0.85
"""What the margin settled at on two shared CPUs. Beginning at 1 made the first second of a run its slowest."""

UNKNOWN_CAP = 16
"""The first cap where nothing is known of the device."""

TILE_LOSS = 1 / 8
"""The share of a step that rounding to a tile may give up; tiles gain 5 to 25% (measured on CPU)."""


class Edge:
    """The paper's law for shared steps, repaired; a control of the default, `dlfp_edge.control.slack`.

    `T` seconds (None: the engine's target); `c_initial`, `c_min`, `c_max` tokens; `growth` the part of the
    way the cap takes towards what a step below the target would allow.
    """

    def __init__(
        self,
        *,
        T: float | None = None,
        c_initial: float | None = None,
        c_min: float = 1,
        c_max: float = 8192,
        growth: float = GROWTH,
        max_change: float | None = None,
    ) -> None:
        self.name = "dlfp"
        self.resets = 0
        self.steered = True
        self._target_s, self._min, self._max = T, c_min, c_max
        self._growth = growth
        self._max_change = max_change
        self._initial = c_initial
        self._cap = clamp(c_initial or UNKNOWN_CAP, c_min, c_max)
        self._margin = FIRST_MARGIN
        self._learned_at_s: float | None = None

    @property
    def state(self) -> float | None:
        return self._cap

    def budget(self, view: View, now: float) -> int | None:
        if self._learned_at_s is None and self._initial is None and view.fits is not None:
            self._cap = clamp(view.fits, self._min, self._max)
        cap = int(clamp(self._at(view.target_s), self._min, min(self._max, view.most)))
        return quantise(max(cap, 1), view.decoders, view.tile)

    def observe(self, observation: Observation) -> Update:
        target_s = self._target_s if self._target_s is not None else observation.target_s
        if not target_s or observation.gap_s <= 0 or observation.used == 0:
            return Update(
                self._cap, changed=False, reason="no target measured yet" if target_s is None else "no prefill"
            )
        self._cap, self._learned_at_s = self._at(target_s), target_s
        self._learn_margin(observation.gap_s / target_s)
        target_s *= self._margin
        over = observation.gap_s > target_s
        if not over and not observation.filled:
            return Update(self._cap, changed=False, reason="the step did not fill its cap")
        wanted = observation.used * clamp(target_s / observation.gap_s, 1 / RATIO_LIMIT, RATIO_LIMIT)
        if self._max_change is not None:
            wanted = clamp(wanted, self._cap * (1 - self._max_change), self._cap * (1 + self._max_change))
        if over:
            wanted = self._cap + SHRINKAGE * (min(wanted, self._cap) - self._cap)
        elif wanted <= self._cap:
            # The quantised output ran below the state and below the target: no reason to shrink.
            return Update(self._cap, changed=False, reason="the output is rounded below the state")
        else:
            wanted = self._cap + self._growth * (wanted - self._cap)
        before, self._cap = self._cap, clamp(wanted, self._min, self._max)
        return Update(self._cap, changed=self._cap != before, reason=None if self._cap != before else "at its limit")

    def _at(self, target_s: float | None) -> float:
        """The cap for a target, which depends on how many decode where it is a relative one."""
        if self._target_s is not None or self._learned_at_s is None or not target_s:
            return self._cap
        return clamp(self._cap * target_s / self._learned_at_s, self._min, self._max)

    def _learn_margin(self, stretch: float) -> None:
        """`stretch` is the gap over the target."""
        change = -MARGIN_STEP if stretch > TAIL else MARGIN_STEP * TAIL_SHARE
        self._margin = clamp(self._margin * (1 + change), LEAST_MARGIN, 1.0)


def quantise(cap: int, decoders: int, tile: int) -> int:
    """`cap` tokens beside `decoders`, such that the step's total is a multiple of `tile` where that costs little."""
    total = cap + decoders
    rounded = total - total % tile
    if rounded <= decoders or total - rounded > total * TILE_LOSS:
        return cap
    return rounded - decoders
