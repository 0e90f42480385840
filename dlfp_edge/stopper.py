"""When a step must be stopped: for an arrival, for an end, and when it stretches a gap past its bound."""

from __future__ import annotations

import logging

from dlfp_edge.handle import Task
from dlfp_edge.lane_state import Flight, LaneState
from dlfp_edge.queues import Refusal
from dlfp_edge.runtime import Interruptible
from dlfp_edge.state import State
from dlfp_edge.task import Class, Finish

PREEMPT_S = 0.015
"""A step with less than this left is let finish."""

REGAIN_S, AWAY_S = 0.25, 0.05
"""Once nobody has been watching for the second, background steps on some of the CPUs only that would take longer than
the first, or have, are begun again on all."""

BACKSTOP_WINDOW_S = 10.0
_log = logging.getLogger(__name__)


class Stopper:
    """Interrupts steps, and knows when the engine must look again although no step ends."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._away_since: float | None = None

    def arrived(self, task: Task, now: float) -> None:
        """A task was queued: background work in its way is interrupted where steps are shared."""
        lane = self._state.lane_of(task.task_class)
        if task.task_class is not Class.FOREGROUND or not self._state.shared:
            return
        if not self._can_start(lane, task):
            return
        for flight in lane.in_flight:
            if flight.background_tokens and all(running.task is not task for running, _, _ in flight.parts):
                if not flight.decoders and self._preempt(lane, flight, now):
                    self._state.size.interrupted(now)
                elif flight.decoders:
                    self._preempt(lane, flight, now)

    def _can_start(self, lane: LaneState, task: Task) -> bool:
        """Whether the task runs already (who submits on a timer is let in first), or could where steps ended now."""
        if task.record.started is not None:
            return True
        fits = not isinstance(lane.place(task), Refusal)
        if not self._state.classes_share:
            return fits and not self._state.queued
        return fits or (not self._state.owed and self._state.pressure.make_way(lane, task))

    def end(self, task: Task, finish: Finish, now: float, error: str | None) -> None:
        """End a running task from outside; the step that holds it is stopped where that saves time."""
        lane = self._state.lane_of(task.task_class)
        running = next((r for r in lane.running if r.task is task), None)
        if running is None:
            self._state.delivery.finish(task, finish, now, error)
            return
        for flight in lane.in_flight:
            if any(part is running for part, _, _ in flight.parts):
                self._preempt(lane, flight, now)
        self._state.finish(lane, running, finish, now, error)

    def interrupt_all(self, now: float) -> None:
        """Stop every step: the engine is closing."""
        for lane in self._state.lanes.all:
            for flight in lane.in_flight:
                self._stop(lane, flight, now)

    def begin_hold(self, now: float) -> None:
        """Stop the background's step where a hold to measure has waited too long for its end."""
        lane = self._state.lanes.background
        if self._state.shared or not self._state.solo.overdue(now):
            return
        for flight in lane.in_flight:
            if self._interrupt(lane, flight, now):
                self._state.solo.interrupted(min(now - flight.submitted, flight.predicted_s))

    def clear_the_way(self, now: float) -> None:
        """Stop the background's step where a foreground step needs its CPUs and priority would not give them to it."""
        if any(flight.exclusive for flight in self._state.lanes.foreground.in_flight):
            for flight in self._state.lanes.background.in_flight:
                if self._interrupt(self._state.lanes.background, flight, now):
                    self._state.size.interrupted(now)

    def regain(self, now: float) -> None:
        """Give the background every CPU again soon after the last reader has gone."""
        if self._state.lanes.foreground.running:
            self._away_since = None
            return
        if self._away_since is None:
            self._away_since = now
        if now >= self._away_since + AWAY_S:
            # What is predicted is a mean over thread counts, so such a step can be far from its end when it should end.
            overdue = now >= self._away_since + AWAY_S + REGAIN_S
            for flight in self._narrow():
                if overdue or flight.predicted_s - (now - flight.submitted) > REGAIN_S:
                    self._interrupt(self._state.lanes.background, flight, now)

    def _narrow(self) -> list[Flight]:
        """Steps of the background's own lane that run on fewer threads than they could."""
        if self._state.shared:
            return []
        most = self._state.caps.prefill_threads
        return [
            flight for flight in self._state.lanes.background.in_flight if flight.threads < most and flight.copy is None
        ]

    def enforce_bounds(self, now: float) -> None:
        """The backstop: a foreground step past its bound is freed of what stretches it."""
        while self._state.backstops and self._state.backstops[0] < now - BACKSTOP_WINDOW_S:
            self._state.backstops.popleft()
        bound = self._bound()
        if bound is None or now < bound:
            return
        lane = self._state.lanes.foreground
        flight = lane.in_flight[0]
        flight.backstopped = True
        self._state.counters.backstops += 1
        self._state.backstops.append(now)
        _log.debug("backstop: a step of the %s lane is past its bound", lane.name)
        if self._state.shared:
            lane.decode_only = self._interrupt(lane, flight, now)
        else:
            for theirs in self._state.lanes.background.in_flight:
                self._interrupt(self._state.lanes.background, theirs, now)

    def _bound(self) -> float | None:
        """When the foreground step that runs now has run too long; None where there is none to stop."""
        lane = self._state.lanes.foreground
        if not lane.in_flight:
            return None
        flight = lane.in_flight[0]
        if flight.bound_s is None or flight.backstopped:
            return None
        return max(flight.submitted, lane.last_completed) + flight.bound_s

    def next_wake(self, now: float) -> float | None:
        """When something must happen although no step ends: a bound passes, a step that was put off is to start, or a
        paced stream needs its next token. That time may have passed since.
        """
        lane = self._state.lanes.foreground
        if not lane.running and self._away_since is not None and self._narrow():
            looks = (self._away_since + AWAY_S, self._away_since + AWAY_S + REGAIN_S)
            return next((when for when in looks if when > now), None)
        if lane.in_flight:
            return self._bound()
        if lane.not_before is not None:
            return lane.not_before
        able = (running for running in lane.running if running.active and running.planned < running.reserved)
        decoding = (running for running in able if running.decoding and not running.ended)
        low_at = [at for running in decoding if (at := self._state.low_at(running)) is not None]
        return max(now, min(low_at)) if low_at else None

    def waiting_for(self) -> str:
        """What background work waits for, for people."""
        lane = self._state.lanes.background
        if not lane.has_background():
            return "it waits for free KV cells or a free sequence"
        if lane.in_flight:
            return "its step is in flight and gets no CPU time"
        return "foreground work leaves it no step"

    def _preempt(self, lane: LaneState, flight: Flight, now: float) -> bool:
        """Interrupt a step unless it is about to end anyway."""
        elapsed_s = now - flight.submitted
        if max(flight.predicted_s - elapsed_s, 0.1 * elapsed_s) <= PREEMPT_S:
            return False
        if not self._interrupt(lane, flight, now):
            return False
        flight.preempted = True
        self._state.counters.preemptions += 1
        return True

    def _interrupt(self, lane: LaneState, flight: Flight, now: float) -> bool:
        return self._state.caps.interruptible is not Interruptible.NO and self._stop(lane, flight, now)

    def _stop(self, lane: LaneState, flight: Flight, now: float) -> bool:
        if not self._state.stoppable or flight.interrupted_at is not None:
            return False
        flight.interrupted_at = now
        _log.debug("step %d of the %s lane is told to stop", flight.handle, lane.name)
        lane.lane.interrupt(flight.handle)
        return True
