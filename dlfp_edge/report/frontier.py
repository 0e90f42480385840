"""How smooth the foreground is against how much background work gets done: one point a setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dlfp_edge.experiment.results import Row
from dlfp_edge.report.families import alone, family, sweeps
from dlfp_edge.report.labels import Label, place_labels
from dlfp_edge.report.pictures import INK, MUTED, PAPER, log_axis, new_figure
from dlfp_edge.report.words import short


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of a row, for an axis."""

    title: str
    of: Callable[[Row], float | None]


RATE = Measure("background prompt tokens per second", lambda row: row.background_tokens_per_s)
NORMALISED = Measure("background prompt tokens per second, normalised", lambda row: row.background_normalised)
DOCUMENTS = Measure("background documents per minute", lambda row: row.documents_per_min)
GAPS = (
    Measure("P99 gap, ms", lambda row: row.itl.p99),
    Measure("longest gap, ms", lambda row: row.itl.max),
)
SHOWN = (
    Measure("P99 shown gap, ms", lambda row: row.shown.p99),
    Measure("longest shown gap, ms", lambda row: row.shown.max),
)


FEW, SHORT = 8, 20
"""So few points with names so short have their names beside them, more have numbers."""


def marks(rows: Sequence[Row]) -> dict[str, str]:
    """What stands beside each point: its name, or its number by the P99 of what a reader sees, 1 the smoothest."""
    points = [row for row in rows if not alone(row) and row.seen.p99 is not None]
    points.sort(key=lambda row: row.seen.p99 or 0.0)
    if len(points) <= FEW and all(len(row.setting) <= SHORT for row in points):
        return {row.setting: row.setting for row in points}
    return {row.setting: str(number) for number, row in enumerate(points, 1)}


def plot_frontier(rows: Sequence[Row], candidate: str, across: Measure, up: Sequence[Measure]) -> Figure:
    """A panel for each measure of smoothness, two beside each other; solo arms are lines."""
    lines = (len(up) + 1) // 2
    figure, grid = new_figure(lines, min(2, len(up)), 3.9 * lines)
    panels = list(zip(grid.flat, up, strict=True))
    for axes, measure in panels:
        _draw(axes, rows, candidate, across, measure)
    _label(figure, panels, rows, candidate, across)
    return figure


def frontier_picture(rows: Sequence[Row], candidate: str, title: str) -> Figure:
    """P99 of the gaps a reader sees against background prompt tokens per second, with the names beside it."""
    figure, grid = new_figure(1, 1, max(5.0, 1.3 + 0.19 * len(rows)))
    axes = grid[0][0]
    measure = Measure("P99 gap a reader sees, ms", lambda row: row.seen.p99)
    _draw(axes, rows, candidate, RATE, measure)
    axes.set_title(title)
    axes.set_ylabel(measure.title)
    known = marks(rows)
    shown = sorted((row for row in rows if row.seen.p99 is not None), key=lambda row: row.seen.p99 or 0.0)
    numbers = [mark if (mark := known.get(row.setting, "")) != row.setting else "" for row in shown]
    told = [f"{short(row.setting)}: {row.seen.p99:,.0f} ms" for row in shown]
    names = [f"{mark}  {text}".strip() for mark, text in zip(numbers, told, strict=True)]
    if shown:
        figure.legend([_handle(row, candidate) for row in shown], names, loc="outside right upper", fontsize=8)
    _label(figure, [(axes, measure)], rows, candidate, RATE)
    return figure


def _draw(axes: Any, rows: Sequence[Row], candidate: str, across: Measure, measure: Measure) -> None:
    for row in rows:
        value = measure.of(row)
        if value and alone(row):
            axes.axhline(value, linewidth=1.2, linestyle=":", color=family(row).colour)
    for points in sweeps(rows).values():
        line = _line(points, across, measure)
        axes.plot([x for x, _ in line], [y for _, y in line], linewidth=0.9, alpha=0.6, color=family(points[0]).colour)
    for row in rows:
        point = _point(row, across, measure)
        if point is not None:
            handle = _handle(row, candidate)
            handle.set_data([point[0]], [point[1]])
            handle.set_zorder(4 if row.setting == candidate else 3)
            handle.set_clip_on(False)  # a point on an axis is whole
            axes.add_line(handle)
    axes.set_yscale("log")
    heights = [value for row in rows if (value := measure.of(row))]
    if heights:
        axes.set_ylim(min(heights) / 1.4, max(heights) * 1.4)
    axes.set_xlim(0.0, 1.08 * max((x for row in rows if (x := across.of(row))), default=1.0))
    log_axis(axes.yaxis)
    axes.set_xlabel(across.title)
    axes.set_title(measure.title)
    axes.grid(visible=True)
    if not any(_point(row, across, measure) for row in rows):
        axes.text(0.5, 0.5, "nothing was measured", transform=axes.transAxes, ha="center", color=MUTED)


def _label(
    figure: Figure, panels: Sequence[tuple[Any, Measure]], rows: Sequence[Row], candidate: str, across: Measure
) -> None:
    figure.canvas.draw()
    figure.set_layout_engine("none")
    known = marks(rows)
    for axes, measure in panels:
        labels = [
            Label(known[row.setting], *point, bold=row.setting == candidate)
            for row in rows
            if row.setting in known and (point := _point(row, across, measure)) is not None
        ]
        right = axes.get_xlim()[1]
        lines = [_line(points, across, measure) for points in sweeps(rows).values()]
        lines += [[(0.0, y), (right, y)] for row in rows if alone(row) and (y := measure.of(row))]
        place_labels(axes, labels, lines, ink=INK, leader=MUTED)


def _line(points: Sequence[Row], across: Measure, measure: Measure) -> list[tuple[float, float]]:
    return [point for row in points if (point := _point(row, across, measure)) is not None]


def _point(row: Row, across: Measure, measure: Measure) -> tuple[float, float] | None:
    x, y = across.of(row), measure.of(row)
    return None if alone(row) or x is None or not y else (x, y)


def _handle(row: Row, candidate: str) -> Line2D:
    kind = family(row)
    if alone(row):
        return Line2D([], [], color=kind.colour, linestyle=":", linewidth=1.2)
    first = row.setting == candidate
    return Line2D(
        [],
        [],
        color=kind.colour,
        marker="*" if first else kind.marker,
        markersize=13.0 if first else 6.0,
        markeredgecolor=PAPER,
        markeredgewidth=0.7,
        linestyle="none",
    )
