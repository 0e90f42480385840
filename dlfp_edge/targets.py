"""The longest gap a foreground stream should see: given, or relative to what it sees alone."""

from __future__ import annotations

from collections.abc import Callable

from dlfp_edge.decode_times import DecodeTimes
from dlfp_edge.settings import Placement, Settings

SLOWDOWN = {Placement.LANES: 1.75, Placement.SHARED: 3.0}


class Targets:
    """Targets by number of decoders. Says once when a target is below what decoding alone takes."""

    def __init__(
        self, settings: Settings, placement: Placement, times: DecodeTimes, say: Callable[[str], None]
    ) -> None:
        self._times = times
        self._absolute_s = settings.target_itl_s
        self._slowdown = settings.slowdown or SLOWDOWN[placement]
        self._sharing = settings.slowdown or SLOWDOWN[Placement.SHARED]
        self._asked = settings.slowdown
        self._say = say
        self._told = False

    def feasible(self, decoders: int) -> bool:
        """Whether this many decoders could meet the target with nothing beside them."""
        alone_s, target_s = self._times.alone_s(decoders), self.target(decoders)
        return alone_s is None or target_s is None or alone_s <= target_s

    def check_reached(self, decoders: int, now: float) -> None:
        """Say once that a slowdown that was asked for is not reached in lanes, by what is left to do there."""
        least = None if self._told or self._asked is None else self._times.least_slowdown(decoders, now)
        if least is not None and self._asked is not None and least > self._asked:
            self._told = True
            self._say(
                f"a slowdown of {self._asked:g} is infeasible: beside background work decodes take {least:.2f} times "
                "as long as alone here at best; background goes on as gently as it can"
            )

    def target(self, decoders: int, *, sharing: bool = False) -> float | None:
        """Seconds; None while nothing has been measured and no absolute target was given.

        `sharing` is for a step in which somebody's prompt goes by: it takes longer whatever the placement.
        """
        alone_s = self._times.alone_s(decoders)
        if self._absolute_s is None:
            return None if alone_s is None else (self._sharing if sharing else self._slowdown) * alone_s
        if not self._told and alone_s is not None and self._absolute_s < alone_s:
            self._told = True
            self._say(
                f"a target of {self._absolute_s * 1e3:.0f} ms is infeasible: decoding alone takes "
                f"{alone_s * 1e3:.0f} ms here; background runs at its floor"
            )
        return self._absolute_s
