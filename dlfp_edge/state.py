"""What the parts of the engine share: its lanes, what it has learned, and how a running task ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import inf

from dlfp_edge.background import Floor, SoloHold, StepSize
from dlfp_edge.decode_times import DecodeTimes
from dlfp_edge.delivery import Delivery
from dlfp_edge.lane_state import LaneState
from dlfp_edge.placement import Lanes
from dlfp_edge.playout import CALM_S
from dlfp_edge.pressure import Pressure
from dlfp_edge.running import Running
from dlfp_edge.runtime import Capabilities, Interruptible
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.targets import Targets
from dlfp_edge.task import Class, Finish
from dlfp_edge.trace import Counters

RESERVE_LOW_S = 0.5

LEEWAY = 1.25
"""Of a target nobody asked for: what a decode gains by one more thread is worth less than what the background loses. On
two CPUs a lone decode was then a third faster, its P99 beside the background the same, and the background lost half.
"""

DECODE_SHARE = 0.7
"""Of the time between two shown tokens of a paced stream, decoding alone may take this much."""


class State:
    """Changed by the engine's thread alone.

    `stoppable` says that the runtime can interrupt a step, `caps.interruptible` how the policy may. `ranked` says that
    the background's lane gives way by priority; where it does not, it keeps off the foreground's CPUs. `queued` is how
    many tasks waited when steps were last started. `held` says that background work is held on request, `owed` that it
    shares steps and got less than its floor, `backstops` when the backstop last acted, `background_seen` when
    background work last existed, `background_progress` when it last advanced.
    """

    def __init__(
        self,
        capabilities: Capabilities,
        lanes: Lanes,
        settings: Settings,
        counters: Counters,
        delivery: Delivery,
        say: Callable[[str], None],
    ) -> None:
        self.stoppable = capabilities.interruptible is not Interruptible.NO
        if not settings.interrupts:
            capabilities = replace(capabilities, interruptible=Interruptible.NO)  # for all but the end of the engine
        self.caps = capabilities
        self.lanes = lanes
        self.settings = settings
        self.counters = counters
        self.delivery = delivery
        self.shared = lanes.placement is Placement.SHARED
        self.classes_share = self.shared and not settings.single_class
        self.ranked = self.shared or (settings.priority and capabilities.priority_effective is not False)
        if not lanes.foreground.lane.spec.threads_invariant:
            capabilities = replace(capabilities, decode_s_per_cell={})  # those of another kind of lane
        self.decode_times = DecodeTimes(
            capabilities,
            absolute=settings.target_itl_s is not None,
            leeway=1.0 if settings.target_itl_s or settings.slowdown else LEEWAY,
            spare=1 if not self.ranked and lanes.background.controller.steered else 0,
        )
        self.targets = Targets(settings, lanes.placement, self.decode_times, say)
        self.pressure = Pressure(capabilities, counters, say)
        self.size = StepSize(capabilities, shared=self.shared)
        self.floor = Floor()
        self.solo = SoloHold()
        self.backstops: deque[float] = deque()
        self.held = False
        self.owed = False
        self.background_waiting = False
        self.queued = 0
        self.background_seen = -inf
        self.background_prompt_tokens = 0
        self.background_progress = 0.0
        self.last_gap_s: float | None = None

    def lane_of(self, task_class: Class) -> LaneState:
        """The lane that runs a class."""
        return self.lanes.foreground if task_class is Class.FOREGROUND else self.lanes.background

    def yields(self, lane: LaneState) -> bool:
        """Whether a lane is the background's own, at low priority beside the foreground's."""
        return lane is self.lanes.background and not self.shared

    def low_at(self, running: Running) -> float | None:
        """When what a paced stream has in reserve is so little that it decodes ahead again; None without a pace.

        Whoever waits for that moment and whoever asks whether it has come must compute the same number.
        """
        deadline = running.playout.deadline()
        return None if deadline is None else deadline - self._reserve_low_s()

    def _reserve_low_s(self) -> float:
        """In shared steps an efficient chunk and a decode."""
        if not self.shared:
            return RESERVE_LOW_S
        cost = self.lanes.foreground.cost
        return min(RESERVE_LOW_S, cost.margin * cost.predict(1, self.size.efficient) + cost.decode_s(1))

    def note_background(self, now: float) -> None:
        """Remember when background work last existed (work held on request does not count, unless in flight)."""
        if any(flight.background_tokens for flight in self.lanes.background.in_flight) or self._background_can_run():
            self.background_seen = now
        self.delivery.contend(now < self.calm_at)

    @property
    def calm_at(self) -> float:
        """When background work has ceased to contend with paced streams, if none comes meanwhile."""
        return self.background_seen + CALM_S

    def least_gap_s(self) -> float:
        """The shortest gap that a pace may ask for here, with as many streams as decode; 0 while that is not known."""
        streams = sum(1 for r in self.lanes.foreground.running if r.foreground and r.prompt_planned and not r.ended)
        return (self.decode_times.alone_s(max(1, streams)) or 0.0) / DECODE_SHARE

    def owe(self, now: float) -> None:
        """Find out whether background work, wherever it waits, is owed its floor."""
        self.owed = self.classes_share and self.floor.owed(now, waiting=self._background_can_run())

    def _background_can_run(self) -> bool:
        return not self.held and (self.background_waiting or self.lanes.background.has_background())

    def finish(self, lane: LaneState, running: Running, finish: Finish, at: float, error: str | None = None) -> None:
        if not running.ended:
            self.finish_running(running, finish, at, error)
        if running.in_flight == 0:
            self.retire(lane, running, at)

    def finish_running(self, running: Running, finish: Finish, at: float, error: str | None = None) -> None:
        running.ended = True
        self.delivery.finish(running.task, finish, at, error)

    def retire(self, lane: LaneState, running: Running, now: float) -> None:
        """Take back the sequence of a task that has ended."""
        if running not in lane.running:
            return
        if running.ended:
            lane.release(running, now)
