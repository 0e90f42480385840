"""When tokens are shown: a paced stream is released on its reader's schedule, not as bursts arrive."""

from __future__ import annotations


class Playout:
    """The release schedule of one stream at `pace` tokens/s (None: at once).

    The first token is shown as soon as it is there. Each later one is due 1/pace after the one before was due; one that
    comes late is shown on arrival and the schedule goes on from there.
    """

    def __init__(self, pace: float | None) -> None:
        self._interval_s = None if pace is None else 1.0 / pace
        self._last_due: float | None = None

    def due(self, available: float) -> float:
        """When to show the next token, available since `available`; advances the schedule by one token."""
        if self._interval_s is None or self._last_due is None:
            self._last_due = available
        else:
            self._last_due = max(available, self._last_due + self._interval_s)
        return self._last_due

    def deadline(self) -> float | None:
        """When the token not yet computed is due; None for a stream without a schedule, or before its first token."""
        if self._interval_s is None or self._last_due is None:
            return None
        return self._last_due + self._interval_s
