"""Who gives KV cells up where they run short, and when they come back.

What rests goes first (`LaneState.make_room`), then the newest background task is paused, then the newest foreground
task. Nobody is aborted: a paused task goes on where it was, from cells saved in host memory. Where they cannot be saved
they are computed again, which may change output unless the runtime's does not depend on the schedule: so only where
nothing else would let anybody go on.
"""

from __future__ import annotations

from collections.abc import Callable

from dlfp_edge.handle import Task
from dlfp_edge.lane_state import LaneState
from dlfp_edge.pauses import Activity, Slice
from dlfp_edge.running import Running
from dlfp_edge.runtime import Capabilities, StepResult, Transfer
from dlfp_edge.task import Class
from dlfp_edge.trace import Counters

SAVED_SHARE = 0.5
"""Host memory for paused tasks, as a share of the lane's own KV cache."""


class Pressure:
    """Pauses tasks of a lane and lets them return. `say` takes what a person should be told once."""

    def __init__(self, capabilities: Capabilities, counters: Counters, say: Callable[[str], None]) -> None:
        self._caps = capabilities
        self._counters = counters
        self._say = say
        self._freed = False

    def freed(self) -> bool:
        """Whether cells have become free, since this was last asked, without a step that ends and says so."""
        freed, self._freed = self._freed, False
        return freed

    def make_way(self, lane: LaneState, task: Task) -> bool:
        """Pause background tasks for a foreground task that lacks KV cells, if that is enough for it.

        Whether cells are on their way to it.
        """
        if not lane.has_place(task.task_class):
            return False
        match = lane.sequences.match(task, lane.running)
        if match.coming:
            return False
        cells = lane.need(task, match)
        if lane.lacking(cells, soon=True) <= 0:
            return any(running.activity is Activity.LEAVING for running in lane.running)
        movable = [r for r in lane.running if not r.foreground and r.active and self._can_leave(lane, r)]
        if lane.lacking(cells, soon=True) > sum(running.reserved for running in movable):
            return False
        self._pause_newest(lane, cells, movable)
        return True

    def grow(self, lane: LaneState) -> None:
        """Promise more KV cells to tasks that have used up theirs; pause the newest task where there are none."""
        for running in list(lane.running):
            if running.starved:
                self._grow(lane, running)

    def resume(self, lane: LaneState, task_class: Class) -> bool:
        """Let paused tasks of a class return, the oldest first; whether none is left."""
        paused = [r for r in lane.running if r.activity is Activity.PAUSED and r.task.task_class is task_class]
        for running in sorted(paused, key=_age):
            if not lane.make_room(running.wanted + lane.owed()):
                return False
            running.reserved = running.wanted
            running.activity = Activity.RETURNING if running.saved else Activity.ACTIVE
        return True

    def next_copy(self, lane: LaneState, seconds: float) -> tuple[Running, Transfer] | None:
        """The next slice to copy, if a task is on its way out or back; it takes about so long."""
        for running in lane.running:
            if running.activity is Activity.LEAVING and not running.in_flight:
                self._leave_at_once(lane, running)
            whole = running.saving or running.computed
            transfer = running.transfer(lane.copy_speed.cells(seconds))
            if transfer is not None:
                running.saving = whole
                return running, transfer
        return None

    def copied(self, lane: LaneState, running: Running, transfer: Transfer, result: StepResult) -> None:
        """Account for a slice. One that failed leaves its task to compute its cells again."""
        running.in_flight -= 1
        if running.ended:
            return
        if result.error is not None:
            self._say(f"KV cells could not be copied ({result.error}): they are computed again")
            self._drop(lane, running)
            return
        lane.copy_speed.observe(transfer, result.completed - result.submitted)
        if transfer.content is None:
            assert result.content is not None
            running.saved.append(Slice(transfer.start, transfer.end, result.content))
            lane.lane.truncate(running.sequence, transfer.start)
            running.computed = running.planned = transfer.start
            running.activity = Activity.LEAVING if transfer.start else Activity.PAUSED
        else:
            running.saved.pop()
            running.computed = running.planned = transfer.end
            if not running.saved:
                running.saving, running.activity = 0, Activity.ACTIVE

    def _grow(self, lane: LaneState, running: Running) -> None:
        more = running.wanted - running.reserved
        if self._promise(lane, running, more):
            return
        active = [r for r in lane.running if r.active and not r.ended]
        movable = [r for r in active if not (running.foreground and self._stays(lane, r))]
        background = [r for r in movable if not r.foreground]
        self._pause_newest(lane, more, background or (movable if len(active) > 1 else []))
        if running.active:
            self._promise(lane, running, more)

    def _promise(self, lane: LaneState, running: Running, cells: int) -> bool:
        promised = lane.make_room(cells)
        running.reserved += cells if promised else 0
        return promised

    def _pause_newest(self, lane: LaneState, cells: int, candidates: list[Running]) -> None:
        oldest_first = sorted(candidates, key=_age)
        for running in reversed(oldest_first):
            if lane.lacking(cells, soon=True) <= 0:
                return
            running.activity = Activity.LEAVING
            running.forked = 0
            running.task.record.pauses += 1
            self._counters.pauses += 1
            if not running.in_flight:
                self._leave_at_once(lane, running)

    def _leave_at_once(self, lane: LaneState, running: Running) -> None:
        """Let a task go whose cells need not be copied, or cannot be."""
        if running.computed and self._can_save(lane, running):
            return
        if running.computed:
            self._drop(lane, running)
            if not self._caps.schedule_invariant:
                why = "as many as may be are saved already" if self._caps.save else "this runtime cannot save them"
                self._say(f"KV cells ran short and {why}: those of a paused task are computed again")
        running.activity = Activity.PAUSED
        self._freed = True

    def _drop(self, lane: LaneState, running: Running) -> None:
        """Give up a task's cells, to be computed again when it returns."""
        lane.lane.truncate(running.sequence, 0)
        running.put_off()
        running.dropped = True
        self._counters.recomputed += 1

    def _can_leave(self, lane: LaneState, running: Running) -> bool:
        return self._can_save(lane, running) or (self._caps.schedule_invariant and not self._stays(lane, running))

    def _stays(self, lane: LaneState, running: Running) -> bool:
        """Whether the foreground leaves a background task its cells: computed again and again it would never end."""
        return not running.foreground and running.dropped and not self._can_save(lane, running)

    def _can_save(self, lane: LaneState, running: Running) -> bool:
        if not self._caps.save:
            return False
        others = sum(r.saving for r in lane.running if r is not running)
        return others + (running.saving or running.computed) <= SAVED_SHARE * lane.cells


def _age(running: Running) -> tuple[bool, float]:
    return not running.foreground, running.task.arrived
