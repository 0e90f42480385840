"""What a lane runs next: the limits in force, the plan, the threads, and the step submitted."""

from __future__ import annotations

import time
from dataclasses import replace

from dlfp_edge.background_cpus import BackgroundCpus
from dlfp_edge.control import View, split
from dlfp_edge.control.port import clamp
from dlfp_edge.decode_times import UNSEEN_SLOW
from dlfp_edge.device import CpuTopology
from dlfp_edge.lane_state import Flight, LaneState
from dlfp_edge.pauses import IDLE_SLICE_S, SLICE_S
from dlfp_edge.running import Running
from dlfp_edge.runtime import Interruptible, Pooling, Segment, Step
from dlfp_edge.schedule import Limits, Plan, Work, plan, whole_chunks
from dlfp_edge.state import DECODE_SHARE, State
from dlfp_edge.task import Class

SHARED_BOUND = 1.4
"""Times the target after which the backstop acts in shared steps. At 1.1 it acted on steps that were about to end, and
the lost work and the decode after it made the slow gaps slower."""

LANES_BOUND = 3.0
"""The same in lanes, where it is for systems on which priority does too little: at 1.5 it stopped background steps for
gaps that were the machine's own, at the cost of up to a third of the throughput and to nobody's gain."""

LEAD_S = 0.010
"""How long before a paced token is due the backstop leaves off waiting, besides the time of one decode."""

BACKSTOPS_A_THREAD = 3

RESERVE_HIGH_S = 1.0
"""A paced stream decodes ahead until it has so much in reserve, and again from `State.low_at` on."""

PACED_SHARE = 0.5, 0.9
"""Of the time a paced reader gives a token, what a shared step may take: faster is of no use, slower is late."""

SPACING = 0.95
"""Of their target, slow gaps of foreground decodes that need every CPU are stretched to this much."""

WORTH_SPACING = 0.7
"""Times a slow gap, how long pauses must be for the background to gain by them where decodes leave it CPUs anyway: with
pauses of half a gap on two CPUs it had no more than on the one that was left to it."""

FLOOR_PAUSE = 0.2
"""Times its own, how long a decode waits where the background is owed its floor and fewer threads cannot give it."""

PROMPT_STRETCH = 4.0
"""Times what it takes alone, when a reader's prompt is due. By these times a short prompt goes before a long one that
came a little earlier, and everybody's time comes."""

EMBEDDED_TOKENS = 64
"""Tokens of a step whose hidden states are asked for: each also takes the memory of a row of logits."""


class Starter:
    """Plans and submits the steps of an engine's lanes."""

    def __init__(self, state: State, topology: CpuTopology | None) -> None:
        self._state = state
        self._cpus = BackgroundCpus(state, topology)

    def start_steps(self, now: float) -> None:
        """Submit to every lane what it can run now."""
        self._state.note_background(now)
        self._hold_to_measure(now)
        self._cpus.pin()
        for lane in self._state.lanes.all:
            self._state.pressure.grow(lane)
            while len(lane.in_flight) < self._state.caps.depth and self._start(lane, now):
                pass

    def _hold_to_measure(self, now: float) -> None:
        """Begin or end a hold of the background that decode-only time is to be measured in."""
        solo, lanes = self._state.solo, self._state.lanes
        if not solo.active:
            return
        watched = (running for running in lanes.foreground.running if self._watched(running) and not running.ended)
        if not any(running.prompt_planned for running in watched):
            solo.stop(now)
        elif self._state.shared or not lanes.background.in_flight:
            solo.begin(now)
            solo.expire(now)

    def _start(self, lane: LaneState, now: float) -> bool:
        began = time.perf_counter()
        if self._lane_is_held(lane):
            return False
        if lane.last_flight is not None and lane.last_flight.next_call is None:
            lane.last_flight.next_call = now
        runnable = self._runnable(lane)
        if self._copy(lane, runnable, now, began):
            return True
        works = self._works(lane, runnable, now)
        cells_read = 0
        if not self._state.yields(lane):
            cells_read = lane.cells_read()
            self._state.decode_times.reading(cells_read)
        decoders = sum(1 for work in works if work.foreground and work.decode and work.due)
        prompts = any(work.foreground and not work.decode for work in works)
        target_s = self._target_s(lane, max(decoders, 1), sharing=prompts)
        budget = self._budget(lane, works, decoders, cells_read, target_s, now)
        own = not self._state.shared and not self._state.yields(lane)
        waits = own and self._background_waits()
        beside = own and self._background_works(waits=waits)
        owed = own and self._state.floor.owed(now, waiting=waits)
        # Half a chunk, where the time that it does not take is to be the background's.
        limits = self._limits(lane, runnable, budget // 2 if owed and budget is not None else budget, now)
        step_plan = plan(works, limits)
        if step_plan is None:
            lane.put_off(None, now)
            return False
        pause_s = self._pause_s(lane, step_plan, target_s, now, owed=owed) if beside else 0.0
        if lane.put_off(lane.last_completed + pause_s if pause_s > 0 else None, now):
            return False
        parts = self._parts(step_plan, runnable)
        threads = self._threads(lane, step_plan, budget, target_s, now, beside=beside)
        if beside and all(work.decode for work, _ in step_plan.parts):
            self._cpus.decoded_on(threads)
        step = Step(tuple(segment for _, segment, _ in parts), threads)
        flight = Flight(
            handle=lane.lane.submit(step),
            parts=parts,
            threads=step.threads,
            decoders=sum(1 for work, _ in step_plan.parts if work.foreground and work.decode),
            protected=step_plan.protected,
            budget=budget,
            target_s=target_s,
            predicted_s=0.0,
            planned_at=now,
            plan_s=0.0,
            submitted=now,
            waited_s=lane.waited_s if decoders else 0.0,
            cells_read=cells_read,
            exclusive=own and self._cpus.excludes(threads),
            note=self._note(lane, step_plan, limits),
        )
        flight.predicted_s = lane.cost.predict(flight.decodes, flight.prefill_tokens)
        if flight.decoders:
            flight.decode_s = self._decode_s(lane, flight.decodes)
        flight.bound_s = self._bound_s(lane, flight)
        self._join(lane, flight)
        lane.decode_only = lane.decode_only and not flight.decoders
        flight.plan_s = time.perf_counter() - began
        return True

    def _parts(self, step_plan: Plan, runnable: list[Running]) -> list[tuple[Running, Segment, bool]]:
        """What was planned as segments, each with whether it is a decode."""
        by_sequence = {running.sequence: running for running in runnable}
        planned = [(by_sequence[work.sequence], count, work.decode) for work, count in step_plan.parts]
        return [
            (running, running.segment(count, self._state.caps.pooling), decode) for running, count, decode in planned
        ]

    def _copy(self, lane: LaneState, runnable: list[Running], now: float, began: float) -> bool:
        """Copy a slice of a task on its way out or back, in turn with steps that somebody watches."""
        watched = [r for r in runnable if r.foreground and (not r.decoding or self._due(lane, r, now)[0])]
        if watched and lane.last_flight is not None and lane.last_flight.copy is not None:
            return False
        found = self._state.pressure.next_copy(lane, self._slice_s(lane, watched))
        if found is None:
            return False
        transfer = found[1]
        flight = Flight(
            handle=lane.lane.submit(Step((), 1, transfer)),
            parts=[],
            threads=1,
            decoders=0,
            protected=False,
            budget=None,
            target_s=None,
            predicted_s=lane.copy_speed.seconds(transfer),
            planned_at=now,
            plan_s=0.0,
            submitted=now,
            note="save" if transfer.content is None else "restore",
            copy=found,
        )
        self._join(lane, flight)
        flight.plan_s = time.perf_counter() - began
        return True

    def _slice_s(self, lane: LaneState, watched: list[Running]) -> float:
        """How long a copy may take: half of what the target leaves beside the decodes of the same lane."""
        decoders = sum(1 for running in watched if running.decoding)
        target_s = self._target_s(lane, max(decoders, 1))
        if decoders and target_s is not None:
            return max(SLICE_S / 4, (target_s - lane.cost.decode_s(decoders)) / 2)
        return SLICE_S if self._state.lanes.foreground.count(Class.FOREGROUND) else IDLE_SLICE_S

    def _target_s(self, lane: LaneState, decoders: int, *, sharing: bool = False) -> float | None:
        """The longest gap to aim at. Readers at a pace see none of one below it, and are late after longer ones."""
        target_s = self._state.targets.target(decoders, sharing=sharing)
        if target_s is None or not _all_paced(lane):
            return target_s
        token_s = 1 / max(running.task.spec.pace or 0.0 for running in lane.running if running.foreground)
        if not self._state.shared and not sharing:
            return DECODE_SHARE * token_s  # fewer threads cost the background less, however long they take
        return clamp(target_s, PACED_SHARE[0] * token_s, PACED_SHARE[1] * token_s)

    def _lane_is_held(self, lane: LaneState) -> bool:
        """Whether a lane of background work must wait: by request, to measure alone, or behind the backstop."""
        if not self._state.yields(lane):
            return False
        return (
            self._state.held
            or self._state.solo.active
            or any(f.backstopped or f.exclusive for f in self._state.lanes.foreground.in_flight)
        )

    def _runnable(self, lane: LaneState) -> list[Running]:
        """Tasks with something to plan, foreground first; a suspect of a failed step runs alone."""
        ready = [running for running in lane.running if _can_run(running)]
        lane.suspects = [running for running in lane.suspects if not running.ended]
        suspects = [running for running in lane.suspects if running in ready and not self._is_held(running)]
        if suspects:
            return suspects[:1]
        ready = [running for running in ready if running not in lane.suspects]
        if self._state.settings.single_class:
            return [running for running in ready if running.foreground or not self._state.held]
        prefill_s = lane.cost.prefill_s or 0.0
        return sorted(ready, key=lambda running: (not running.foreground, _due_at(running, prefill_s)))

    def _works(self, lane: LaneState, runnable: list[Running], now: float) -> list[Work]:
        """The tasks as the planner sees them. Of texts to embed no more than what has its outputs in one step."""
        works, outputs = [], min(EMBEDDED_TOKENS, self._state.caps.outputs)
        for running in runnable:
            work = self._work(lane, running, now)
            if running.task.spec.embed and self._state.caps.pooling is Pooling.MEAN:
                count = whole_chunks(work.remaining, outputs, self._state.caps.min_chunk)
                work, outputs = replace(work, remaining=count), outputs - count
            if work.remaining:
                works.append(work)
        return works

    def _watched(self, running: Running) -> bool:
        """Whether the task is scheduled as one that somebody watches: in single-class mode all are."""
        return running.foreground or self._state.settings.single_class

    def _is_held(self, running: Running) -> bool:
        """Whether the task is background work that is held."""
        return not running.foreground and (self._state.held or self._state.solo.active)

    def _work(self, lane: LaneState, running: Running, now: float) -> Work:
        foreground = self._watched(running)
        decode = running.decoding
        due, ahead = self._due(lane, running, now) if foreground and decode else (True, True)
        return Work(running.sequence, foreground, running.planned, running.remaining, decode, due, ahead)

    def _due(self, lane: LaneState, running: Running, now: float) -> tuple[bool, bool]:
        """Whether a foreground decode must run in the next step, and whether it may."""
        deadline, low_at = running.playout.deadline(), self._state.low_at(running)
        if deadline is None or low_at is None:
            return True, True
        if now <= deadline - RESERVE_HIGH_S:
            running.ahead = False
        elif now >= low_at:
            running.ahead = True
        return running.ahead, running.ahead

    def _budget(
        self, lane: LaneState, works: list[Work], decoders: int, cells: int, target_s: float | None, now: float
    ) -> int | None:
        beside = sum(w.remaining for w in works if not (w.foreground and w.decode))
        prompts = sum(not w.decode for w in works) + self._state.queued
        most = self._cpus.threads if self._state.yields(lane) else self._state.caps.largest_step
        fits, unsplit = None, 0
        if decoders and target_s is not None and not self._state.yields(lane):
            decode_s = self._decode_s(lane, decoders)
            within_s = self._in_time_s(lane, decode_s, target_s, now)
            fits = lane.cost.fits(decode_s, within_s, min(beside, most))
            prompt = next((work.remaining for work in works if work.foreground and not work.decode), 0)
            unsplit = split.unsplit(lane.cost, decode_s, within_s, prompt, self._state.caps.min_chunk, most)
        start = next((work.position for work in works if not work.decode), 0)
        view = View(decoders, beside, prompts, target_s, most, self._state.caps.tile, fits, cells, start, unsplit)
        budget = lane.controller.budget(view, now)
        self._state.counters.resets = sum(state.controller.resets for state in self._state.lanes.all)
        return budget

    def _in_time_s(self, lane: LaneState, decode_s: float, target_s: float, now: float) -> float:
        """The target, or what is left until the first paced stream is late that a decode alone would not make late."""
        late = (r.playout.late_at() for r in lane.running if r.foreground and r.decoding and not r.ended)
        left_s = (at - now for at in late if at is not None)
        return min([target_s, *(left for left in left_s if left >= decode_s)])

    def _decode_s(self, lane: LaneState, decoders: int) -> float:
        """What so many foreground decodes take alone, as far as that is known."""
        return self._state.decode_times.alone_s(decoders) or lane.cost.decode_s(decoders)

    def _limits(self, lane: LaneState, runnable: list[Running], cap: int | None, now: float) -> Limits:
        background = any(not running.foreground for running in runnable) and not self._state.settings.single_class
        held = self._state.shared and self._state.held
        solo = self._state.shared and self._state.solo.active
        owed = self._state.owed and background and not solo
        prefill_s = lane.cost.prefill_s
        isolated = self._state.caps.largest_step
        if background:
            isolated = self._isolated(lane, runnable, now)
        return Limits(
            cap=None if self._state.yields(lane) else cap,
            isolated=isolated,
            largest_step=self._state.caps.largest_step,
            min_chunk=self._state.caps.min_chunk,
            tile=self._state.caps.tile,
            decode_only=lane.decode_only or solo,
            hold=held,
            owed=self._state.size.efficient if owed else 0,
            decode_weight=1.0 if self._state.caps.batched or not prefill_s else lane.cost.decode_s(1) / prefill_s,
        )

    def _isolated(self, lane: LaneState, runnable: list[Running], now: float) -> int:
        """Tokens of a step of background work alone: what it may lose, and what the reserve of paced streams covers."""
        tokens = self._state.size.tokens(lane.cost, now)
        reserves = [r.playout.deadline() for r in runnable if r.foreground and r.decoding]
        deadlines = [deadline for deadline in reserves if deadline is not None]
        if deadlines and lane.cost.prefill_s:
            slack_s = (min(deadlines) - now) / lane.cost.margin - lane.cost.decode_s(len(deadlines))
            tokens = min(tokens, max(self._state.size.efficient, int(slack_s / lane.cost.prefill_s)))
        return tokens

    def _threads(
        self, lane: LaneState, step_plan: Plan, budget: int | None, target_s: float | None, now: float, *, beside: bool
    ) -> int:
        if self._state.yields(lane):
            return self._background_threads(budget)
        prefills = any(not work.decode for work, _ in step_plan.parts)
        if prefills:
            return self._state.caps.prefill_threads
        times = self._state.decode_times
        if self._state.shared:
            return times.fastest(step_plan.total)
        if step_plan.floor:
            return times.fewest
        if beside:
            return times.beside(step_plan.total, target_s, now, exact=_all_paced(lane))
        return times.fastest(step_plan.total)

    def _pause_s(self, lane: LaneState, step_plan: Plan, target_s: float | None, now: float, *, owed: bool) -> float:
        """How long after the last step of foreground decodes this one starts.

        The background has what the target leaves. Otherwise, where decodes need every CPU, it would have its floor:
        eight readers on two CPUs with a gap of 55 ms left it 45 tokens/s of prefill, spaced out below their target of
        85 ms, 160. Where fewer threads do and the target is far away, the background has every CPU in between instead
        of some of them all the time. Steps that read a prompt too make room for it only where it is owed its floor.
        Where the target leaves less than that, the step is a floor step, on the fewest threads or late.
        """
        decodes = sum(1 for work, _ in step_plan.parts if work.foreground and work.decode)
        self._cpus.spaced = False
        if not decodes or lane.in_flight:
            return 0.0
        waits = target_s is not None and not any(self._runs_low(running, now) for running in lane.running)
        longest_s = SPACING * target_s if target_s is not None and waits else 0.0
        if decodes < step_plan.total:
            return longest_s - UNSEEN_SLOW * lane.cost.predict(decodes, step_plan.total - decodes) if owed else 0.0
        times, most = self._state.decode_times, self._state.caps.prefill_threads
        threads = times.beside(decodes, target_s, now, exact=_all_paced(lane))
        slow_s = times.beside_s(decodes, threads, now, slow=True)
        if slow_s is None:
            return 0.0
        room_s = longest_s - slow_s
        self._cpus.spaced = room_s >= (WORTH_SPACING * slow_s if threads < most else 0.0)
        if threads < most:
            return room_s if self._cpus.spaced else 0.0
        step_plan.floor = owed and room_s < FLOOR_PAUSE * slow_s
        if not step_plan.floor:
            return room_s
        return FLOOR_PAUSE * slow_s if times.fewest >= most else 0.0

    def _runs_low(self, running: Running, now: float) -> bool:
        """Whether a paced stream has so little in reserve that it must not wait."""
        low_at = self._state.low_at(running)
        return low_at is not None and not running.ended and now > low_at

    def _background_works(self, *, waits: bool) -> bool:
        """Whether the background's lane runs a step, or is about to start one of what `waits`."""
        return bool(self._state.lanes.background.in_flight) or (waits and not self._state.solo.active)

    def _background_waits(self) -> bool:
        """Whether there is background work that nobody asked to hold."""
        lane = self._state.lanes.background
        return not self._state.held and (bool(lane.in_flight) or bool(self._runnable(lane)))

    def _background_threads(self, budget: int | None) -> int:
        """The share, less one thread for every three backstops in 10 s; all of them when nobody is watching."""
        if all(running.ended for running in self._state.lanes.foreground.running):
            return self._state.caps.prefill_threads
        threads = budget or self._cpus.threads
        return max(1, threads - len(self._state.backstops) // BACKSTOPS_A_THREAD)

    def _bound_s(self, lane: LaneState, flight: Flight) -> float | None:
        """How long the step may run before the backstop acts; None where it does not apply.

        A target that decoding alone misses cannot be enforced, and what the floor grants is not taken back.
        """
        steered = self._state.lanes.background.controller.steered
        if self._state.caps.interruptible is Interruptible.NO or not steered or not flight.decoders:
            return None
        if flight.target_s is None or flight.note == "floor" or not self._state.targets.feasible(flight.decoders):
            return None
        if self._state.shared:
            if not flight.protected:
                return None
            # A piece that had better not be split is planned to take longer than the target.
            return max(SHARED_BOUND * flight.target_s, lane.cost.margin * flight.predicted_s)
        if flight.decodes < len(flight.parts) or not self._state.lanes.background.in_flight:
            return None
        deadlines = [running.playout.deadline() for running, _, _ in flight.parts]
        if any(deadline is None for deadline in deadlines):
            return LANES_BOUND * flight.target_s
        slack_s = min(deadline for deadline in deadlines if deadline is not None) - flight.submitted
        return max(LANES_BOUND * flight.target_s, slack_s - lane.cost.decode_s(flight.decodes) - LEAD_S)

    def _note(self, lane: LaneState, step_plan: Plan, limits: Limits) -> str:
        if step_plan.floor:
            self._state.counters.floors += 1
            return "floor"
        if lane.decode_only:
            return "backstop"
        return "solo" if self._state.solo.active else ""

    def _join(self, lane: LaneState, flight: Flight) -> None:
        """Put the step in flight; it and the other lanes' steps are no longer alone where there are any."""
        for other in self._state.lanes.all:
            if other is not lane and other.in_flight:
                flight.alone = False
                for theirs in other.in_flight:
                    theirs.alone = False
        lane.in_flight.append(flight)
        lane.last_flight = flight


def _all_paced(lane: LaneState) -> bool:
    """Whether there are readers, and all of them at a pace."""
    paces = [running.task.spec.pace for running in lane.running if running.foreground]
    return bool(paces) and all(paces)


def _due_at(running: Running, prefill_s: float) -> float:
    """When a reader's next token is due: later after a long prompt than after a short one. Others stay in order."""
    if not running.foreground or running.prompt_planned:
        return 0.0
    return running.task.arrived + PROMPT_STRETCH * prefill_s * len(running.tokens)


def _can_run(running: Running) -> bool:
    """Whether there is something to plan, and a KV cell promised for it."""
    return not running.ended and running.active and running.remaining > 0 and running.planned < running.reserved
