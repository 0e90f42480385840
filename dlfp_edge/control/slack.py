"""The default for shared steps: the largest chunk with which a slow step still ends in time.

    c = max p:  m * (decode(k) + p * rate(p)) <= T

All of it is estimated online (`dlfp_edge.control.estimate`): decode(k) is what the step's decodes take alone, rate what
a token costs in a step of this size, m what the slowest steps but 1.5% take compared with their prediction. Feedback
acts through the estimates, so that one slow step moves the cap by what it says about the machine, not by all it was
late; a law that turns the cap itself wanders with the noise, and on average below what would fit.

Where not even the shortest piece of a foreground prompt ends in time, `dlfp_edge.control.split` decides how much of it
runs at once.
"""

from __future__ import annotations

from dlfp_edge.control.edge import UNKNOWN_CAP, quantise
from dlfp_edge.control.port import Observation, Update, View


class Slack:
    """The default for shared steps. It has no state of its own: the estimate is the lane's."""

    def __init__(self) -> None:
        self.name = "slack"
        self.resets = 0
        self.steered = True
        self._cap: float | None = None

    @property
    def state(self) -> float | None:
        return self._cap

    def budget(self, view: View, now: float) -> int | None:
        fits = min(UNKNOWN_CAP if view.fits is None else max(view.fits, 1), view.most)
        whole = (
            0 if view.fits is None else min(view.unsplit, view.most)
        )  # a shorter piece would leave another that is late
        self._cap = max(fits, whole)
        return max(quantise(fits, view.decoders, view.tile), whole)

    def observe(self, observation: Observation) -> Update:
        return Update(self._cap, changed=False, reason="the lane's estimate learns")
