"""Which share of the cores each running lane gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlfp_edge.runtime import Priority


@dataclass(frozen=True, slots=True)
class Demand:
    """What one running lane asks for: threads, on some cores, at a priority."""

    threads: int
    cores: frozenset[int]
    priority: Priority

    @property
    def wanted(self) -> int:
        """Cores it could keep busy."""
        return min(self.threads, len(self.cores))

    def taken_from(self, cores: frozenset[int]) -> int:
        """Of these cores, how many it takes when its threads go to its other cores first."""
        return max(0, self.wanted - len(self.cores - cores))


def granted(demands: Sequence[Demand], trickle: float) -> list[float]:
    """Cores' worth of time for each demand.

    Normal priority goes first and shares evenly among its own; the lowest gets what is left, and at least `trickle`.
    """
    return [_granted(demand, demands, trickle) for demand in demands]


def _granted(demand: Demand, demands: Sequence[Demand], trickle: float) -> float:
    free: float = len(demand.cores)
    peers = demand.wanted
    for other in demands:
        if other is demand:
            continue
        taken = other.taken_from(demand.cores)
        if other.priority is demand.priority:
            peers += taken
        elif other.priority is Priority.NORMAL:
            free -= taken
    return max(trickle, min(demand.wanted, demand.wanted * free / peers))
