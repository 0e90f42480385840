"""Which fixed settings and peers a cell is scored against, by trials with other seeds than it is scored with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from dlfp_edge.experiment.arms import Arm, Speed
from dlfp_edge.experiment.plan import FINALISTS, Point
from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.results import point_of, ratios, solo_medians

FIXED = "best-fixed"
"""The sweep of fixed settings."""

AS_SMOOTH = 1.05
"""A setting whose P99 gap is at most so many times the candidate's, or the target, is smooth enough."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What goes on of one sweep, at most two; `best` is the smooth enough one with most background, else the smoothest."""

    labels: tuple[str, ...]
    best: str | None


def choose(arms: Sequence[Arm], records: Sequence[TrialRecord], candidate: str) -> dict[str, Choice]:
    """For each sweep what did best. A point counts where it was tried with as many seeds as any of its sweep."""
    found = _points(arms, records, candidate)
    sweeps: dict[str, list[tuple[int, Point]]] = {}
    for arm in arms:
        if arm.sweep is not None and arm.label in found:
            sweeps.setdefault(arm.sweep, []).append(found[arm.label])
    bound_s = AS_SMOOTH * max(
        _target_s(arms, records, candidate), found[candidate][1].p99_s if candidate in found else 0
    )
    return {sweep: _chosen(points, bound_s) for sweep, points in sweeps.items()}


def _target_s(arms: Sequence[Arm], records: Sequence[TrialRecord], candidate: str) -> float:
    """About what the candidate's gaps are aimed to stay below, from the foreground alone; 0 where that is not known."""
    mine = next(arm for arm in arms if arm.label == candidate)
    alone = [gap for gap in solo_medians([r for r in records if r.arm == mine.solo]).values() if gap]
    expected_s = mine.opener.expected_gap_s(Speed(median(alone), math.inf)) if alone else 0.0
    return expected_s if math.isfinite(expected_s) else 0.0


def _chosen(tried: Sequence[tuple[int, Point]], bound_s: float) -> Choice:
    most = max(seeds for seeds, _ in tried)
    points = [point for seeds, point in tried if seeds == most][:FINALISTS]
    return Choice(tuple(point.label for point in points), _best(points, bound_s))


def _best(points: Sequence[Point], bound_s: float) -> str:
    smooth = [point for point in points if point.p99_s <= bound_s]
    if smooth:
        return max(smooth, key=lambda point: point.background).label
    return min(points, key=lambda point: point.p99_s).label


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
