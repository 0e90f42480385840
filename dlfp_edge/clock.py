"""Where time comes from. Everything that waits or stamps is given a clock, so tests run on virtual time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A clock that never goes backwards."""

    name: str

    def now(self) -> float:
        """Seconds since an arbitrary origin."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    name = "monotonic"

    def now(self) -> float:
        return time.monotonic()


class VirtualClock:
    """A clock that stands still until somebody moves it."""

    name = "virtual"

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def advance_to(self, when_s: float) -> None:
        """Move forward to `when_s`; a time already past changes nothing."""
        self._now_s = max(self._now_s, when_s)
