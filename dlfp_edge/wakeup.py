"""How much earlier than wanted a thread must set its alarm, because timed waits return late."""

from __future__ import annotations

from collections import deque

FIRST_LEAD_S = 0.001
LONGEST_LEAD_S = 0.02
"""Waits that came later than this were held up by something that no lead makes up for."""

KEPT = 64


class Lead:
    """The longest that one of the newest waits was late. Timers, the scheduler and Python's lock are all in it.

    A lead that is too long costs a few naps more; one too short costs a late token.
    """

    def __init__(self) -> None:
        self._late_s: deque[float] = deque([FIRST_LEAD_S], maxlen=KEPT)
        self.seconds = FIRST_LEAD_S

    def learn(self, late_s: float) -> None:
        """A wait returned so many seconds after the moment it was to end."""
        if late_s <= LONGEST_LEAD_S:
            self._late_s.append(late_s)
            self.seconds = max(self._late_s)
