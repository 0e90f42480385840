"""The settings of an engine, and how people spell them: `placement/controller`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from dlfp_edge.errors import UsageError, hint


class Placement(str, Enum):
    """Where background work runs: in a lane of its own, or in the foreground's steps."""

    AUTO = "auto"
    LANES = "lanes"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Settings:
    """How an engine schedules.

    `controller` is a name of `dlfp_edge.control` ("auto" picks the placement's default), `parameters` its named
    parameters where they differ from the preset. `target_itl_s` is an absolute target for a foreground gap; without it
    the target is `slowdown` x the decode-only time (None: 1.75 in lanes, 3 in shared steps). `context` counts the KV
    cells of all lanes together and `foreground_share` the part of them the foreground lane gets (None: a third);
    `foreground_sequences` and `background_sequences` how many tasks of a class can run at
    once; `queue_limit` how many more of each class may wait.
    """

    placement: Placement = Placement.AUTO
    controller: str = "auto"
    preset: str = "edge"
    parameters: Mapping[str, float] = field(default_factory=dict)
    target_itl_s: float | None = None
    slowdown: float | None = None
    context: int | None = None
    foreground_share: float | None = None
    foreground_sequences: int = 4
    background_sequences: int = 8
    queue_limit: int = 1024
    single_class: bool = False

    def __post_init__(self) -> None:
        """Raises UsageError for a number that makes no sense."""
        if self.target_itl_s is not None and not (math.isfinite(self.target_itl_s) and self.target_itl_s > 0):
            raise UsageError(f"a target of {self.target_itl_s} s is not possible: give a time above 0")
        if self.slowdown is not None and not (math.isfinite(self.slowdown) and self.slowdown >= 1):
            raise UsageError(f"a slowdown of {self.slowdown} is not possible: give 1 or more, 2 for twice as long")
        counts = (self.context, self.foreground_sequences, self.background_sequences, self.queue_limit)
        if any(count is not None and count < 1 for count in counts):
            raise UsageError("context, sequences and queue_limit must each be at least 1")


def parse_setting(text: str) -> tuple[Placement, str]:
    """Split `auto`, `placement/controller` or a bare placement. Raises UsageError naming the nearest placement."""
    placement, _, controller = text.partition("/")
    names = [member.value for member in Placement]
    if placement not in names:
        known = hint(placement, names, "placements are")
        raise UsageError(f"unknown placement '{placement}' in setting '{text}': {known}")
    return Placement(placement), controller or "auto"
