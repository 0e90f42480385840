"""What a controller did during one trial: the background's allowance, and how long steps took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from dlfp_edge.experiment.document import Result
from dlfp_edge.report.families import Family, alone, family
from dlfp_edge.report.pictures import INK, MUTED, log_axis, new_figure
from dlfp_edge.report.trials import Trials, Values
from dlfp_edge.report.words import short

MOST = 4
_BINS = 300


@dataclass(frozen=True, slots=True)
class Course:
    """An arm's trial: times in seconds since its first step, durations in ms. NaN where there is no figure."""

    setting: str
    family: Family
    in_lanes: bool
    time_s: Values
    budget: Values
    step_ms: Values
    target_ms: Values

    @property
    def moves(self) -> bool:
        """Whether the allowance changed."""
        known = self.budget[~np.isnan(self.budget)]
        return bool(known.size and known.min() < known.max())


def courses(result: Result, trials: Trials) -> list[Course]:
    """The candidate's trial with the first seed, and up to three others': those whose allowance changed come first."""
    found = []
    for row in result.rows:
        steps = [] if alone(row) or not result.seeds else trials.steps(row.setting, result.seeds[0])
        course = _course(row.setting, family(row), steps)
        if course is not None:
            found.append(course)
    found.sort(key=lambda course: (course.setting != result.candidate, not course.moves))
    return found[:MOST]


def plot_courses(found: Sequence[Course]) -> Figure:
    """A line of panels for each: the allowance on the left, step times on the right."""
    figure, grid = new_figure(len(found), 2, 0.4 + 2.0 * len(found), sharex="row")
    for (left, right), course in zip(grid, found, strict=True):
        known = ~np.isnan(course.budget)
        left.step(course.time_s[known], course.budget[known], where="post", linewidth=1.2, color=course.family.colour)
        unit = "background threads" if course.in_lanes else "tokens beside a decode"
        left.set_title(f"{short(course.setting)}: {unit}")
        left.set_ylim(bottom=0)
        time_s, longest = _longest(course.time_s, course.step_ms)
        right.plot(time_s, longest, linewidth=0.9, color=course.family.colour)
        if not np.isnan(course.target_ms).all():
            known = ~np.isnan(course.target_ms)
            right.step(
                course.time_s[known], course.target_ms[known], where="post", linewidth=1.0, linestyle="--", color=INK
            )
        right.set_yscale("log")
        log_axis(right.yaxis)
        right.set_title("steps with a foreground decode, ms")
        for axes in (left, right):
            axes.grid(visible=True)
            axes.set_xlim(0.0, max(float(course.time_s.max()), 1e-3))
        for axes, figures, said in ((left, course.budget, "no limit"), (right, course.step_ms, "no such step")):
            if np.isnan(figures).all():
                axes.set_yticks([])
                axes.text(0.5, 0.5, said, transform=axes.transAxes, ha="center", color=MUTED)
    for axes in grid[-1]:
        axes.set_xlabel("seconds")
    return figure


def _course(setting: str, kind: Family, steps: Sequence[Mapping[str, Any]]) -> Course | None:
    known = [step for step in steps if _is_number(step.get("submitted")) and _is_number(step.get("completed"))]
    if not known:
        return None
    start = min(step["submitted"] for step in known)
    in_lanes = len({step.get("lane") for step in known}) > 1
    # The foreground's lane has a cap of its own, between its streams: that is not what the background is allowed.
    allowed = [not in_lanes or step.get("lane") == "background" for step in known]
    return Course(
        setting,
        kind,
        in_lanes,
        np.array([step["completed"] - start for step in known]),
        np.array([_figure(step.get("budget")) if its else np.nan for step, its in zip(known, allowed, strict=True)]),
        1e3 * np.array([step["completed"] - step["submitted"] if _held_up(step) else np.nan for step in known]),
        1e3 * np.array([_figure(step.get("target_s")) for step in known]),
    )


def _held_up(step: Mapping[str, Any]) -> bool:
    """Whether a reader waited for the step's end."""
    segments = step.get("segments") or ()
    return any(part.get("task_class") == "foreground" and part.get("kind") == "decode" for part in segments)


def _longest(time_s: Values, step_ms: Values) -> tuple[Values, Values]:
    """The longest step of each of some equal stretches of time."""
    known = ~np.isnan(step_ms)
    time_s, step_ms = time_s[known], step_ms[known]
    if time_s.size <= _BINS:
        return time_s, step_ms
    stretch = np.minimum(time_s / (time_s.max() or 1.0) * _BINS, _BINS - 1).astype(int)
    order = np.lexsort((-step_ms, stretch))
    first = order[np.unique(stretch[order], return_index=True)[1]]
    return time_s[first], step_ms[first]


def _figure(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
