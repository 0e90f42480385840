"""Tasks that give their KV cells up for a while: copied to host memory slice by slice, and later put back.

A slice is short enough to fit into a foreground gap. Slices are taken from the end of a sequence, so that each frees
its cells at once, and put back in the opposite order.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from dlfp_edge.runtime import Content, Transfer

SLICE_S = 0.004
"""How long a slice may take beside foreground decodes where nothing says how much time a gap has left."""

IDLE_SLICE_S = 0.020
"""The same while nobody is decoding: an arrival waits no longer than that."""

FIRST_CELLS = 32
"""Cells of a slice before anything was measured."""

_FORGETTING = 0.3


class Activity(Enum):
    """What a task with a sequence is doing."""

    ACTIVE = "active"
    LEAVING = "leaving"
    PAUSED = "paused"
    RETURNING = "returning"


class Slice(NamedTuple):
    """Cells [start, end) of a paused task."""

    start: int
    end: int
    content: Content


class CopySpeed:
    """Seconds a cell takes to copy, from copies that were made."""

    def __init__(self) -> None:
        self._cell_s: float | None = None

    def cells(self, seconds: float) -> int:
        """How many cells can be copied in that time; at least one."""
        return FIRST_CELLS if self._cell_s is None else max(1, int(seconds / max(self._cell_s, 1e-9)))

    def seconds(self, transfer: Transfer) -> float:
        """How long a copy is likely to take; 0 before anything was measured."""
        return (self._cell_s or 0.0) * (transfer.end - transfer.start)

    def observe(self, transfer: Transfer, seconds: float) -> None:
        """Learn from a copy that was made."""
        cell_s = seconds / (transfer.end - transfer.start)
        known = self._cell_s
        self._cell_s = cell_s if known is None else (1 - _FORGETTING) * known + _FORGETTING * cell_s
