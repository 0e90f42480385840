"""Which trials a comparison has, in which order, and how long they will take."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dlfp_edge.experiment.arms import Arm


@dataclass(frozen=True, slots=True)
class Planned:
    """A trial to run. `repeat` 1 is the baseline once more with the same seed: what it agrees with itself."""

    arm: Arm
    seed: int
    repeat: int = 0

    @property
    def name(self) -> str:
        """Its folder's name."""
        return f"{self.seed}-{self.arm.slug}" + ("-again" if self.repeat else "")


@dataclass(frozen=True, slots=True)
class Plan:
    """Every arm runs with the first seed; those of no sweep, and the best of each sweep, with the others too.

    The order within a seed is drawn from that seed, so that heat and other programs fall on all alike.
    """

    arms: Sequence[Arm]
    seeds: Sequence[int]
    baseline: str | None

    def first(self) -> list[Planned]:
        """The trials of the first seed, and the baseline's once more."""
        seed = self.seeds[0]
        trials = [Planned(arm, seed) for arm in self.arms]
        trials += [Planned(arm, seed, repeat=1) for arm in self.arms if arm.label == self.baseline]
        return _shuffled(trials, seed)

    def later(self, finalists: Iterable[str]) -> list[Planned]:
        """The trials of the other seeds, once it is known which points of the sweeps go on."""
        chosen = set(finalists)
        arms = [arm for arm in self.arms if arm.sweep is None or arm.label in chosen]
        return [trial for seed in self.seeds[1:] for trial in _shuffled([Planned(arm, seed) for arm in arms], seed)]

    @property
    def trials(self) -> int:
        """How many there will be, at most."""
        return len(self._expected())

    def expected_s(self, expected_s: Callable[[Arm], float]) -> float:
        """How long all of it takes, where each sweep sends two points on."""
        return sum(expected_s(trial.arm) for trial in self._expected())

    def _expected(self) -> list[Planned]:
        sweeps: dict[str, list[Arm]] = {}
        for arm in self.arms:
            if arm.sweep is not None:
                sweeps.setdefault(arm.sweep, []).append(arm)
        finalists = [arm.label for points in sweeps.values() for arm in points[:FINALISTS]]
        return [*self.first(), *self.later(finalists)]


FINALISTS = 2
"""Points of a sweep that get all seeds: the smoothest with as much background as the candidate, and the one with most
background as smooth as it.
"""


@dataclass(frozen=True, slots=True)
class Point:
    """An arm's place on the frontier: P99 of the gaps its reader sees, in seconds, and background tokens/s."""

    label: str
    p99_s: float
    background: float


def finalists(points: Sequence[Point], candidate: Point | None) -> list[str]:
    """Which points of one sweep go on: those that come nearest to beating the candidate in either way."""
    if not points or candidate is None:
        return [point.label for point in points[:FINALISTS]]
    smooth = [point for point in points if point.p99_s <= candidate.p99_s]
    busy = [point for point in points if point.background >= candidate.background]
    chosen = (
        max(smooth, key=lambda point: point.background) if smooth else min(points, key=lambda point: point.p99_s),
        min(busy, key=lambda point: point.p99_s) if busy else max(points, key=lambda point: point.background),
    )
    return list(dict.fromkeys(point.label for point in chosen))


def _shuffled(trials: list[Planned], seed: int) -> list[Planned]:
    return random.Random(seed).sample(trials, len(trials))
