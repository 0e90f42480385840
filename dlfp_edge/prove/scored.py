"""What the bars of a cell are judged by: its scoring trials, by arm and seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from dlfp_edge.experiment.record import TrialRecord


@dataclass(frozen=True, slots=True)
class Scored:
    """The scoring trials of a cell that count, by arm and seed. `best` is the fixed setting that did best with the
    seeds to choose by, `peers` are the servers beside us, `paces` tokens/s shown by stream, `ratios` what background
    rates of each arm are divided by. `unmatched` says that there were fixed settings, and none was smooth enough.
    Where another program came on the way, `disturbed` has the background rates from then on, and `quiet_target_s` is
    what gaps were aimed to stay below before. `tighter` are the candidate's trials of the cell with a tighter target.
    """

    candidate: str
    solo: str
    trials: Mapping[str, Mapping[int, TrialRecord]]
    paces: Mapping[str, float]
    ratios: Mapping[str, float | None]
    best: str | None = None
    unmatched: bool = False
    peers: tuple[str, ...] = ()
    disturbed: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    quiet_target_s: float | None = None
    tighter: Mapping[int, TrialRecord] = field(default_factory=dict)

    def of(self, arm: str) -> Sequence[TrialRecord]:
        """The trials of an arm."""
        return list(self.trials.get(arm, {}).values())

    @property
    def own(self) -> Sequence[TrialRecord]:
        """The candidate's trials."""
        return self.of(self.candidate)


def mean_ratio(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """The mean of the first over the second, one pair a seed; None unless every seed has both."""
    found = []
    for mine, other in pairs:
        if mine is None or not other:
            return None
        found.append(mine / other)
    return fmean(found) if found else None
