"""Labels beside points, each where it covers neither another one nor a point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_RADII = (9.0, 14.0, 20.0, 28.0, 38.0, 50.0, 64.0, 80.0)
_ANGLES = tuple(math.radians(degrees) for degrees in (20, 340, 160, 200, 60, 300, 120, 240, 90, 270, 0, 180))
_MARKER = 5.0
_SPACING = 3.0
SIZE = 8.0
_LEADER = 12.0
"""A label farther from its point than this is tied to it by a line. Lengths are in points."""

_Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Label:
    """A text that belongs to a point in data coordinates."""

    text: str
    x: float
    y: float
    bold: bool = False


def place_labels(
    axes: Any, labels: Sequence[Label], lines: Sequence[Sequence[tuple[float, float]]] = (), *, ink: str, leader: str
) -> None:
    """Write the labels beside their points, away from `lines` through data coordinates.

    The figure's layout must be final and its resolution 72 dots an inch.
    """
    renderer = axes.figure.canvas.get_renderer()
    frame = axes.get_window_extent(renderer)
    at = [axes.transData.transform((label.x, label.y)) for label in labels]
    taken: list[_Box] = [(x - _MARKER, y - _MARKER, x + _MARKER, y + _MARKER) for x, y in at]
    for line in lines:
        taken += _along([axes.transData.transform(point) for point in line])
    for label, (x, y) in zip(labels, at, strict=True):
        weight = "bold" if label.bold else "normal"
        probe = axes.text(0, 0, label.text, fontsize=SIZE, fontweight=weight)
        extent = probe.get_window_extent(renderer)
        probe.remove()
        box, radius = _free(x, y, extent.width + 2.0, extent.height + 1.0, taken, frame)
        taken.append(box)
        axes.annotate(
            label.text,
            (label.x, label.y),
            xytext=((box[0] + box[2]) / 2 - x, (box[1] + box[3]) / 2 - y),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=SIZE,
            fontweight=weight,
            color=ink,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": leader, "linewidth": 0.5, "shrinkA": 0.0, "shrinkB": 3.0}
            if radius > _LEADER
            else None,
        )


def _along(points: Sequence[Any]) -> list[_Box]:
    """Small boxes along a line."""
    found: list[_Box] = []
    for (x0, y0), (x1, y1) in pairwise(points):
        count = max(1, int(math.hypot(x1 - x0, y1 - y0) / _SPACING))
        for at in range(count):
            x, y = x0 + (x1 - x0) * at / count, y0 + (y1 - y0) * at / count
            found.append((x - 1.0, y - 1.0, x + 1.0, y + 1.0))
    return found


def _free(x: float, y: float, width: float, height: float, taken: Sequence[_Box], frame: Any) -> tuple[_Box, float]:
    """The nearest place where nothing is covered, or that where least is."""
    places = [(_beside(x, y, width, height, radius, angle), radius) for radius in _RADII for angle in _ANGLES]
    costs = [sum(_overlap(box, other) for other in taken) + _outside(box, frame) for box, _ in places]
    return places[costs.index(min(costs))]


def _beside(x: float, y: float, width: float, height: float, radius: float, angle: float) -> _Box:
    """The box whose nearest side is `radius` away in a direction."""
    across, up = math.cos(angle), math.sin(angle)
    middle_x = x + radius * across + width / 2 * (across > 0.2) - width / 2 * (across < -0.2)
    middle_y = y + radius * up
    return middle_x - width / 2, middle_y - height / 2, middle_x + width / 2, middle_y + height / 2


def _overlap(one: _Box, other: _Box) -> float:
    across = min(one[2], other[2]) - max(one[0], other[0])
    up = min(one[3], other[3]) - max(one[1], other[1])
    return across * up if across > 0 and up > 0 else 0.0


def _outside(box: _Box, frame: Any) -> float:
    beyond = (frame.x0 - box[0], box[2] - frame.x1, frame.y0 - box[1], box[3] - frame.y1)
    return 100.0 * sum(max(0.0, float(part)) for part in beyond)
