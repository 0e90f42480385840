"""Steps that take far too long, and lanes that do not stop when told to: said once a step, with the likely cause.

Nothing is done about them: a background step that gets no CPU is slow for an honest reason and goes on when there is
some, and what hangs inside a runtime cannot be ended from outside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dlfp_edge.lane_state import Flight, LaneState
from dlfp_edge.runtime import Interruptible, Priority, ReportsThreads
from dlfp_edge.state import State
from dlfp_edge.trace import StuckStep

STUCK_S, STUCK_TIMES = 10.0, 10.0
"""A step is stuck once it has run for the first, and for the second times what was predicted."""

LOOK_S = 2.0
"""For how long before that its threads are watched."""

UNSTOPPED_S = 1.0
"""A step told to stop should have ended after this time."""

STARVED_SHARE = 0.1
"""Of one CPU: a lane that got less while it was watched gets none to speak of."""

Say = Callable[[str, Mapping[str, object]], None]


@dataclass(slots=True)
class _Watch:
    """What is known of the step that runs in a lane. `used_s` is the lane's CPU time at `looked_at`."""

    flight: Flight
    looked_at: float | None = None
    used_s: float | None = None
    stuck: bool = False
    unstopped: bool = False


class Watchdog:
    """Looks at the steps in flight. Used in the engine's thread; `stuck` from any."""

    def __init__(self, state: State, say: Say) -> None:
        self._state = state
        self._say = say
        self._watches: dict[str, _Watch] = {}

    def look(self, now: float) -> None:
        """Say what has become true by now."""
        for lane in self._state.lanes.all:
            watch = self._watch(lane)
            if watch is None:
                continue
            flight, began = watch.flight, _began(lane, watch.flight)
            limit_s = limit(flight.predicted_s)
            if watch.looked_at is None and now >= began + limit_s - LOOK_S:
                watch.looked_at, watch.used_s = now, lane.lane.cpu_s()
            if not watch.stuck and now >= began + limit_s:
                watch.stuck = True
                self._report(lane, watch, "is stuck", now - began, now)
            stop_by, told = self._stop_by(flight), flight.interrupted_at
            if told is not None and stop_by is not None and not watch.unstopped and now >= stop_by:
                watch.unstopped = True
                self._report(lane, watch, f"was told to stop {now - told:.1f} s ago and has not", now - began, now)

    def next_wake(self) -> float | None:
        """When there will be something to look at although no step ends."""
        times = []
        for lane in self._state.lanes.all:
            watch = self._watch(lane)
            if watch is None:
                continue
            due = _began(lane, watch.flight) + limit(watch.flight.predicted_s)
            if not watch.stuck:
                times.append(due - LOOK_S if watch.looked_at is None else due)
            stop_by = self._stop_by(watch.flight)
            if stop_by is not None and not watch.unstopped:
                times.append(stop_by)
        return min(times, default=None)

    def stuck(self, now: float) -> tuple[StuckStep, ...]:
        """The steps that were reported and still run."""
        return tuple(
            StuckStep(lane.name, now - _began(lane, watch.flight), watch.flight.predicted_s)
            for lane in self._state.lanes.all
            if (watch := self._watches.get(lane.name)) and (watch.stuck or watch.unstopped)
            if any(flight is watch.flight for flight in list(lane.in_flight))
        )

    def _stop_by(self, flight: Flight) -> float | None:
        """When a step told to stop should have ended; one that can only do so between segments may finish one."""
        if flight.interrupted_at is None:
            return None
        segments = self._state.caps.interruptible is Interruptible.SEGMENTS
        return flight.interrupted_at + max(UNSTOPPED_S, flight.predicted_s if segments else 0.0)

    def _watch(self, lane: LaneState) -> _Watch | None:
        """The watch over the step that runs in a lane; None where none runs."""
        if not lane.in_flight:
            return None
        watch = self._watches.get(lane.name)
        if watch is None or watch.flight is not lane.in_flight[0]:
            watch = self._watches[lane.name] = _Watch(lane.in_flight[0])
        return watch

    def _report(self, lane: LaneState, watch: _Watch, what: str, ran_s: float, now: float) -> None:
        flight = watch.flight
        states = lane.lane.thread_states() if isinstance(lane.lane, ReportsThreads) else None
        used_s = lane.lane.cpu_s()
        got = None
        if watch.looked_at is not None and watch.looked_at < now and used_s is not None and watch.used_s is not None:
            got = (used_s - watch.used_s) / (now - watch.looked_at)
        size = f"{_count(len(flight.parts), 'segment')}, {_count(flight.total_tokens, 'token')}"
        self._say(
            f"a step of the {lane.name} lane {what}: it has run for {ran_s:.0f} s, predicted were "
            f"{flight.predicted_s:.2g} s ({size}); "
            f"{likely_cause(got, states, low=lane.lane.spec.priority is Priority.LOWEST)}",
            {
                "lane": lane.name,
                "requests": [running.task.request_id for running, _, _ in flight.parts],
                "segments": [[segment.start, len(segment.tokens)] for _, segment, _ in flight.parts],
                "threads": flight.threads,
                "ran_s": round(ran_s, 3),
                "predicted_s": flight.predicted_s,
                "cpus_used": got,
                "thread_states": states and dict(states),
            },
        )


def limit(predicted_s: float) -> float:
    """Seconds after which a step with this prediction is stuck."""
    return max(STUCK_S, STUCK_TIMES * predicted_s)


def likely_cause(cpus: float | None, states: Mapping[str, int] | None, *, low: bool) -> str:
    """Why a step does not end, and what a person can do, for people.

    `cpus` is how many CPUs' time the lane's threads got lately, `states` what they do at this moment (None: unknown),
    `low` whether the lane has the lowest priority.
    """
    stop = "Ctrl-C ends the run and keeps what was written, a second Ctrl-C ends it at once"
    if cpus is not None and cpus >= STARVED_SHARE:
        return (
            f"its threads compute ({cpus:.1f} CPUs' worth), so it is slow rather than hung: wait, or give it less work"
        )
    if states and states.get("disk"):
        return "its threads wait for the disk, probably because memory is short: close other programs or lower --ctx"
    if states and not states.get("ready"):
        return f"its threads sleep, so it is likely hung: {stop}"
    if low and (cpus is not None or states):
        return (
            "its threads get no CPU, probably because the lane has the lowest priority and other work keeps every CPU "
            "busy. It goes on when that ends; --setting shared/auto would give it a share of the steps instead"
        )
    if cpus is not None or states:
        return f"its threads get no CPU although their priority is normal: other programs may hold every CPU, or {stop}"
    return f"what its threads do is not known here: if it does not go on, {stop}"


def _began(lane: LaneState, flight: Flight) -> float:
    return max(flight.submitted, lane.last_completed)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
