"""When tokens are shown: a paced stream is released on its reader's schedule, not as bursts arrive.

The laws, for a stream of pace r (tokens/s), in seconds:

- **Schedule.** The first token is due when it is there. Each later one is due 1/r after the one before was due, or
  after it was there where that was later: the schedule goes on from a token that came late.
- **While background work contends** a token is shown when it is due, or when it is there.
- **Otherwise** it is shown as it comes, at most `AHEAD_S` before it is due.
- **Onset.** When contention begins, the next token is due 1/r after the last one was shown. What the reader was shown
  ahead of the schedule stays shown; the reserve is what has been computed and not been shown.
- **End.** When contention is over, the gap between two tokens shrinks from 1/r by a factor `RAMP` a token, until the
  stream is shown as it comes: a reserve does not come in a burst.
- **Hysteresis.** Contention is over once there has been no background work for `CALM_S`.

Nothing is held back to build up a reserve: it is earned by decoding ahead of the schedule. At any time r is at most
what decoding alone could give with some to spare (`Playout.add`).
"""

from __future__ import annotations

from collections import deque

from dlfp_edge.task import Class

CHAT_PACE = 15.0
"""Tokens a second of a chat stream that asks for no other pace: faster than anybody reads."""

AHEAD_S = 2.0
RAMP = 0.9
CALM_S = 2.0


def chat_pace(task_class: Class, grammar: str | None) -> float | None:
    """The pace of a chat stream that asks for none: nobody reads along in the background, or in structured output."""
    return CHAT_PACE if task_class is Class.FOREGROUND and grammar is None else None


class Playout:
    """The release schedule of one stream at `pace` tokens/s; None: each token when it is there.

    It has the tokens that were computed and not shown yet. One thread adds tokens and says when contention begins and
    ends; that one may ask for `deadline` at any time, all else excludes each other.
    """

    def __init__(self, pace: float | None) -> None:
        self._asked_s = 0.0 if pace is None else 1.0 / pace
        self._interval_s = self._asked_s
        self._waiting: deque[tuple[float, float]] = deque()  # when each was there, and is due
        self._slot: float | None = None
        self._shown: float | None = None
        self._gap_s = 0.0
        self._contended = False
        self._hurried = False

    @property
    def waits(self) -> bool:
        """Whether a token is to be shown."""
        return bool(self._waiting)

    @property
    def lowered(self) -> float | None:
        """The pace in force, in tokens/s, where it is lower than the one asked for."""
        return 1.0 / self._interval_s if self._interval_s > self._asked_s > 0 else None

    def add(self, available: float, least_gap_s: float = 0.0) -> None:
        """A token is there since `available`. From it on no gap is to be shorter than `least_gap_s`."""
        if self._asked_s:
            self._interval_s = max(self._asked_s, least_gap_s)
        self._append(available)

    def next_at(self) -> float | None:
        """When to show the next token; None while it is not there."""
        if not self._waiting:
            return None
        available, due = self._waiting[0]
        if self._shown is None or self._hurried or not self._asked_s:
            return available
        if self._contended:
            return max(available, due)
        return max(available, self._shown + RAMP * self._gap_s, due - AHEAD_S)

    def show(self) -> float:
        """Take the next token, which is shown now; returns when it was due."""
        self._shown = self.next_at()
        self._gap_s *= RAMP
        return self._waiting.popleft()[1]

    def contend(self, contended: bool) -> None:
        """Background work contends from now on, or does no longer."""
        if contended and not self._contended and self._shown is not None:
            self._slot = self._shown
            there, self._waiting = [available for available, _ in self._waiting], deque()
            for available in there:
                self._append(available)
        elif self._contended and not contended:
            self._gap_s = self._interval_s
        self._contended = contended

    def hurry(self) -> None:
        """Show everything that is there at once."""
        self._hurried = True

    def drop(self) -> None:
        """Show nothing more of what is there."""
        self._waiting.clear()

    def deadline(self) -> float | None:
        """When the token not yet computed could be shown: when it is due, or as long before as tokens are shown ahead.

        None for a stream without a schedule, or before its first token.
        """
        if not self._asked_s or self._slot is None:
            return None
        return self._slot + self._interval_s - (0.0 if self._contended else AHEAD_S)

    def late_at(self) -> float | None:
        """When the token not yet computed is late; None as for `deadline`."""
        return None if not self._asked_s or self._slot is None else self._slot + self._interval_s

    def _append(self, available: float) -> None:
        due = available if self._slot is None else self._slot + self._interval_s
        self._slot = max(available, due)
        self._waiting.append((available, due))
