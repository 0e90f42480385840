"""What kind of thing an arm is, and how it looks: one colour and one marker a family, in every picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from dlfp_edge.experiment.results import Row

_OURS_SHARED = ("auto", "dlfp", "no-prefix-cache")
_SWEPT = re.compile(r"^(?P<series>\D.*?)(?P<value>\d+(?:\.\d+)?)$")


class Family(Enum):
    """A family of arms: its name for people, its colour on white, and matplotlib's marker for it.

    The colours are told apart with any kind of colour blindness (after Okabe and Ito), the markers without any colour.
    """

    LANES = ("lanes", "lanes (ours)", "#0072b2", "o")
    SHARED = ("shared", "shared steps (ours)", "#00855f", "s")
    CONTROLS = ("controls", "controls", "#737373", "D")
    SERVER = ("server", "llama-server", "#cf5700", "^")
    PAIR = ("pair", "llama-server-pair", "#b0508a", "v")
    ENDPOINT = ("endpoint", "endpoints", "#b98500", "P")

    def __init__(self, key: str, title: str, colour: str, marker: str) -> None:
        self.key, self.title, self.colour, self.marker = key, title, colour, marker


def family(row: Row) -> Family:
    """The family of an arm, by the solo it is held against."""
    kind = row.solo.removesuffix("/solo")
    if kind == "lanes":
        return Family.LANES
    if kind == "shared":
        ours = row.setting == row.solo or row.setting.rpartition("/")[2] in _OURS_SHARED
        return Family.SHARED if ours else Family.CONTROLS
    return {"llama-server": Family.SERVER, "llama-server-pair": Family.PAIR}.get(kind, Family.ENDPOINT)


def alone(row: Row) -> bool:
    """Whether the row is the foreground by itself."""
    return row.setting == row.solo


def sweeps(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Series of arms that differ in one number, at the end of their name, in the order of that number."""
    found: dict[str, list[tuple[float, Row]]] = {}
    for row in rows:
        match = _SWEPT.match(row.setting)
        if match and not alone(row) and family(row) is not Family.ENDPOINT:
            found.setdefault(match["series"], []).append((float(match["value"]), row))
    return {
        series: [row for _, row in sorted(points, key=lambda point: point[0])]
        for series, points in found.items()
        if len(points) > 1
    }


def best(points: Sequence[Row], candidate: Row | None) -> Row | None:
    """The point of a sweep with most background among those as smooth as the candidate, else the smoothest."""
    known = [row for row in points if row.seen.p99 is not None]
    if not known:
        return None
    limit = candidate.seen.p99 if candidate is not None else None
    smooth = [row for row in known if limit is not None and (row.seen.p99 or 0.0) <= limit]
    if smooth:
        return max(smooth, key=lambda row: row.background_normalised or 0.0)
    return min(known, key=lambda row: row.seen.p99 or 0.0)
