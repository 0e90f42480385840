"""How large a step of background work may be, what the background is owed, and when it is held to measure alone."""

from __future__ import annotations

from collections import deque

from dlfp_edge.control.estimate import Cost
from dlfp_edge.runtime import Capabilities, Interruptible

LOSS_S = 0.5
"""Measured work that one interruption may lose at most."""

LOSS_SHARE = 0.04
"""Of the time between interruptions, a step may take this much: on average half of it is lost."""

FIRST_INTERVAL_S = 6.0
"""Between interruptions, until there was one. At half of that steps are so small that prefill loses a seventh of its
rate; with none at all the first arrival costs half a second."""

RIGID_STEP_S = 0.25
"""Measured work of a step that cannot be interrupted: how long an arrival may wait for it."""

LANE_STEP_S = 1.0
"""Measured work of a step in a lane of its own. Priority hands the cores over within a step, so all a shorter one gains
is that new thread counts apply sooner; at 0.25 s throughput was 7 to 9% lower and foreground gaps the same."""

LANE_STEP_SHARE = 0.1
"""The same as a share of the time between the interruptions of such steps, where there are any."""

EFFICIENT_TILES = 4
FLOOR_SHARE = 0.05
FLOOR_WINDOW_S = 10.0


class StepSize:
    """Tokens of a step that holds background work alone."""

    def __init__(self, capabilities: Capabilities, *, shared: bool) -> None:
        self._caps = capabilities
        self._shared = shared
        self._interval_s: float | None = None
        self._last: float | None = None

    @property
    def efficient(self) -> int:
        """The fewest tokens that run at nearly the full rate."""
        return min(self._caps.largest_step, EFFICIENT_TILES * self._caps.tile)

    def interrupted(self, now: float) -> None:
        """A step of background work was interrupted for the foreground."""
        if self._last is not None:
            interval_s = now - self._last
            self._interval_s = interval_s if self._interval_s is None else 0.5 * (self._interval_s + interval_s)
        self._last = now

    def tokens(self, cost: Cost, now: float) -> int:
        """The most tokens to run in one go; the runtime's largest step where nothing is known of its speed."""
        if not cost.prefill_s:
            return self._caps.ubatch
        tokens = int(self._work_s(now) / cost.prefill_s)
        if not self._shared:
            tokens = min(max(tokens, self.efficient), self._caps.ubatch)
        return max(self._caps.tile, min(tokens, self._caps.largest_step))

    def _work_s(self, now: float) -> float:
        if not self._shared:  # stopped by the foreground's prompts only where priority does nothing
            return LANE_STEP_S if self._last is None else min(LANE_STEP_S, LANE_STEP_SHARE * self._between_s(now))
        if self._caps.interruptible is Interruptible.NO:
            return RIGID_STEP_S
        if self._last is None:
            self._last = now
        return min(LOSS_S, LOSS_SHARE * self._between_s(now))

    def _between_s(self, now: float) -> float:
        """The time between interruptions, which is getting longer where the last one is long ago."""
        since_s = 0.0 if self._last is None else now - self._last
        return max(self._interval_s or FIRST_INTERVAL_S, since_s)


class Floor:
    """The background's share of device time over the last 10 s, and what it is owed when that falls under 5%.

    In shared steps that is the time of steps by their share of background tokens; in lanes, where priority gives the
    background what the foreground leaves, the CPU time that foreground steps had no threads for.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque()
        self._busy_s = 0.0
        self._waiting_since: float | None = None

    def observe(self, completed: float, busy_s: float) -> None:
        """Up to `completed` the background had another `busy_s` seconds of the device."""
        if busy_s > 0:
            self._steps.append((completed, busy_s))
            self._busy_s += busy_s
        self._forget(completed)

    def owed(self, now: float, *, waiting: bool) -> bool:
        """Whether there has been background work for a whole window that got less than its floor in it."""
        if not waiting:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        self._forget(now)
        return now - self._waiting_since >= FLOOR_WINDOW_S and self._busy_s < FLOOR_SHARE * FLOOR_WINDOW_S

    def _forget(self, now: float) -> None:
        """Drop what lies before the window."""
        while self._steps and self._steps[0][0] < now - FLOOR_WINDOW_S:
            self._busy_s -= self._steps.popleft()[1]


class SoloHold:
    """Holds the background for a few foreground decodes now and then, so that decode-only time is known.

    A hold is wanted, begins at the background's next step boundary, and lasts so many uncontended decode-only steps:
    eight at first, then four, since they say by how much all that is known has changed. Beside decodes that leave the
    background little of the CPUs that boundary may not come, so after a while its step is interrupted: soon where
    nothing is known, or gaps have changed. At most 1% of the time, the first hold apart, goes to them and their losses.
    """

    FIRST_DECODES, DECODES = 8, 4
    URGENT_PATIENCE_S, PATIENCE_S = 0.5, 5.0
    EVERY_S = 10.0
    LARGEST_SHARE = 0.01
    LONGEST_S = 3.0

    def __init__(self) -> None:
        self._first = True
        self._left = 0
        self._learned = False
        self._wanted = 0.0
        self._patience_s = self.PATIENCE_S
        self._lost_s = 0.0
        self._began: float | None = None
        self._next = 0.0

    @property
    def active(self) -> bool:
        """Whether the background is to start no step now."""
        return self._left > 0

    def want(self, now: float, *, urgent: bool = False) -> None:
        """Ask for a hold, unless the last one was too recent.

        An `urgent` one comes up to `EVERY_S` before its time, and the one after it as much later.
        """
        if not self._left and now >= self._next - (self.EVERY_S if urgent else 0.0):
            self._left = self.FIRST_DECODES if self._first else self.DECODES
            self._patience_s = self.URGENT_PATIENCE_S if urgent else self.PATIENCE_S
            self._learned, self._began, self._wanted, self._lost_s = False, None, now, 0.0

    def begin(self, now: float) -> None:
        """Nothing of the background is in flight, so from now on a hold costs its time."""
        if self._left and self._began is None:
            self._began = now

    def overdue(self, now: float) -> bool:
        """Whether the background's step has been waited for long enough."""
        return self.active and self._began is None and now - self._wanted > self._patience_s

    def interrupted(self, loses_s: float) -> None:
        """The background's step was stopped for the hold, and up to so much work with it."""
        self._lost_s = loses_s

    def expire(self, now: float) -> None:
        """End a hold that has lasted too long: who was to be measured decodes too seldom."""
        if self._left and self._began is not None and now - self._began > self.LONGEST_S:
            self.stop(now)

    def decoded(self, now: float) -> None:
        """One uncontended decode-only step has completed."""
        if self._left:
            self._learned = True
            self._left -= 1
            if not self._left:
                self.stop(now)

    def stop(self, now: float) -> None:
        """End the hold, early where nothing decodes any more. One that never began costs nothing and may come again."""
        cost_s = self._lost_s + (0.0 if self._began is None else now - self._began)
        if self._first and self._learned:
            self._first, cost_s = False, 0.0
        self._left = 0
        self._next = max(now, self._next) + max(self.EVERY_S if self._learned else 0.0, cost_s / self.LARGEST_SHARE)
