"""Which fixed settings and peers a cell is scored against, by trials with other seeds than it is scored with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from dlfp_edge.experiment.arms import Arm, Speed
from dlfp_edge.experiment.plan import Point, finalists
from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.results import point_of, ratios, solo_medians

FIXED = "fixed settings"
"""The series that is no peer's."""

AS_SMOOTH = 1.05
"""A setting whose P99 gap is at most so many times the candidate's, or the target, is smooth enough."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What goes on of one series. `best` is the smooth enough point with most background, if any is."""

    labels: tuple[str, ...]
    best: str | None


def choose(arms: Sequence[Arm], records: Sequence[TrialRecord], candidate: str) -> dict[str, Choice]:
    """Of the fixed settings and of each peer's sweep: the best, and what comes nearest to beating the candidate.

    A point counts where it was tried with as many seeds as any of its series.
    """
    found = _points(arms, records, candidate)
    series: dict[str, list[tuple[int, Point]]] = {}
    for arm in arms:
        if arm.label in found and not arm.alone and arm.label != candidate:
            series.setdefault(arm.sweep or FIXED, []).append(found[arm.label])
    mine = found[candidate][1] if candidate in found else None
    bound_s = AS_SMOOTH * max(_target_s(arms, records, candidate), 0.0 if mine is None else mine.p99_s)
    return {name: _chosen(tried, mine, bound_s) for name, tried in series.items()}


def _target_s(arms: Sequence[Arm], records: Sequence[TrialRecord], candidate: str) -> float:
    """About what the candidate's gaps are aimed to stay below, from the foreground alone; 0 where that is not known."""
    mine = next(arm for arm in arms if arm.label == candidate)
    alone = [gap for gap in solo_medians([r for r in records if r.arm == mine.solo]).values() if gap]
    expected_s = mine.opener.expected_gap_s(Speed(median(alone), math.inf)) if alone else 0.0
    return expected_s if math.isfinite(expected_s) else 0.0


def _chosen(tried: Sequence[tuple[int, Point]], candidate: Point | None, bound_s: float) -> Choice:
    most = max(seeds for seeds, _ in tried)
    points = [point for seeds, point in tried if seeds == most]
    best = _best(points, bound_s)
    labels = dict.fromkeys([*([] if best is None else [best]), *finalists(points, candidate)])
    return Choice(tuple(labels), best)


def _best(points: Sequence[Point], bound_s: float) -> str | None:
    smooth = [point for point in points if point.p99_s <= bound_s]
    return max(smooth, key=lambda point: point.background).label if smooth else None


def _points(arms: Sequence[Arm], records: Sequence[TrialRecord], candidate: str) -> Mapping[str, tuple[int, Point]]:
    """Each arm's place on the frontier, the mean over its seeds, and how many those are."""
    reads = ratios(arms, records, candidate)
    places: dict[str, list[Point]] = {}
    for record in records:
        point = point_of(record, reads[record.arm]) if record.counts and not record.repeat else None
        if point is not None:
            places.setdefault(record.arm, []).append(point)
    return {
        label: (len(own), Point(label, fmean(p.p99_s for p in own), fmean(p.background for p in own)))
        for label, own in places.items()
    }
