"""Steps from plan to commit: what a lane runs next, what became of it, and when it must be stopped."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import inf

from dlfp_edge.background import Floor, SoloHold, StepSize
from dlfp_edge.control import Observation, Update, View
from dlfp_edge.delivery import Delivery
from dlfp_edge.device import CpuTopology
from dlfp_edge.handle import Task
from dlfp_edge.lane_state import Flight, LaneState
from dlfp_edge.placement import Lanes, background_cores
from dlfp_edge.running import Running
from dlfp_edge.runtime import Interruptible, Runtime, Step, StepResult
from dlfp_edge.schedule import Limits, Plan, Work, plan
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.targets import Targets
from dlfp_edge.task import Class, Finish
from dlfp_edge.trace import Counters, SegmentTrace, StepRecord

PREEMPT_S = 0.015
"""A step with less than this left is let finish."""

SHARED_BOUND = 1.1
LANES_BOUND = 1.5
"""Times the target after which the backstop acts; what it then takes still ends the gap within 1.5 T and 2 T."""

BACKSTOP_WINDOW_S = 10.0
BACKSTOPS_A_THREAD = 3

RESERVE_LOW_S, RESERVE_HIGH_S = 0.5, 1.0
"""A paced stream decodes ahead until it has the second in reserve, and again when it is down to the first."""

RESERVE_MARGIN = 1.5
"""Times its prediction that a step may take (the worst 1% took up to 1.45 times)."""

ATTEMPTS = 3


class Stepper:
    """Plans, submits, observes and interrupts the steps of an engine's lanes. Runs in the engine's thread."""

    def __init__(
        self,
        runtime: Runtime,
        lanes: Lanes,
        settings: Settings,
        topology: CpuTopology | None,
        counters: Counters,
        delivery: Delivery,
        say: Callable[[str], None],
    ) -> None:
        self._caps = runtime.capabilities
        self._lanes = lanes
        self._settings = settings
        self._counters = counters
        self._delivery = delivery
        self._say = say
        self.targets = Targets(settings, lanes.placement, self._caps, say)
        self._shared = lanes.placement is Placement.SHARED
        self._size = StepSize(self._caps, shared=self._shared)
        self._floor = Floor()
        self._solo = SoloHold()
        self._backstops: deque[float] = deque()
        self._cores = background_cores(topology, self._caps.decode_threads) if topology else None
        self._pinned = False
        self._background_seen = -inf
        self._background_waiting = False
        self.held = False
        self.background_prompt_tokens = 0
        self.background_progress = 0.0
        self.last_gap_s: float | None = None
        for message in getattr(runtime, "messages", ()):
            say(message)

    def lane_of(self, task_class: Class) -> LaneState:
        """The lane that runs a class."""
        return self._lanes.foreground if task_class is Class.FOREGROUND else self._lanes.background

    # --- starting ---------------------------------------------------------------------------------------------------

    def start_steps(self, now: float, *, background_waiting: bool) -> None:
        """Submit to every lane what it can run now."""
        self._background_waiting = background_waiting
        self._note_background(now)
        self._pin_background()
        for lane in self._lanes.all:
            while len(lane.in_flight) < self._caps.depth and self._start(lane, now):
                pass

    def _start(self, lane: LaneState, now: float) -> bool:
        began = time.perf_counter()
        if self._lane_is_held(lane):
            return False
        if lane.last_flight is not None and lane.last_flight.next_call is None:
            lane.last_flight.next_call = now
        runnable = self._runnable(lane)
        works = [self._work(lane, running, now) for running in runnable]
        decoders = sum(1 for work in works if work.foreground and work.decode and work.due)
        target_s = self.targets.target(max(decoders, 1))
        budget = self._budget(lane, works, decoders, target_s, now)
        limits = self._limits(lane, runnable, budget, now)
        step_plan = plan(works, limits)
        if step_plan is None:
            return False
        by_sequence = {running.sequence: running for running in runnable}
        parts = [
            (by_sequence[work.sequence], by_sequence[work.sequence].segment(count), work.decode)
            for work, count in step_plan.parts
        ]
        step = Step(tuple(segment for _, segment, _ in parts), self._threads(lane, step_plan, budget))
        flight = Flight(
            handle=lane.lane.submit(step),
            parts=parts,
            decoders=sum(1 for work, _ in step_plan.parts if work.foreground and work.decode),
            protected=step_plan.protected,
            budget=budget,
            cap_state=lane.controller.state,
            target_s=target_s,
            predicted_s=0.0,
            planned_at=now,
            plan_s=0.0,
            submitted=now,
            note=self._note(lane, step_plan, limits),
        )
        flight.predicted_s = lane.cost.predict(flight.decodes, flight.prefill_tokens)
        flight.bound_s = self._bound_s(lane, flight)
        self._join(lane, flight)
        lane.decode_only = lane.decode_only and not flight.decoders
        flight.plan_s = time.perf_counter() - began
        return True

    def _lane_is_held(self, lane: LaneState) -> bool:
        """Whether a lane of background work must wait: by request, to measure alone, or behind the backstop."""
        if self._shared or lane is not self._lanes.background:
            return False
        return self.held or self._solo.active or any(f.backstopped for f in self._lanes.foreground.in_flight)

    def _runnable(self, lane: LaneState) -> list[Running]:
        """Tasks with something to plan, foreground first; a suspect of a failed step runs alone."""
        ready = [running for running in lane.running if not running.ended and running.remaining > 0]
        lane.suspects = [running for running in lane.suspects if not running.ended]
        if lane.suspects:
            return [running for running in ready if running is lane.suspects[0]]
        if self._settings.single_class:
            return ready
        ready.sort(key=lambda running: not running.foreground)
        return ready

    def _work(self, lane: LaneState, running: Running, now: float) -> Work:
        foreground = running.foreground or self._settings.single_class
        decode = running.decoding
        due, ahead = self._due(lane, running, now) if foreground and decode else (True, True)
        return Work(running.sequence, foreground, running.planned, running.remaining, decode, due, ahead)

    def _due(self, lane: LaneState, running: Running, now: float) -> tuple[bool, bool]:
        """Whether a foreground decode must run in the next step, and whether it may."""
        deadline = running.playout.deadline()
        if deadline is None:
            return True, True
        reserve_s = deadline - now
        if reserve_s >= RESERVE_HIGH_S:
            running.ahead = False
        elif reserve_s <= RESERVE_LOW_S:
            running.ahead = True
        if not self._shared:
            return running.ahead, running.ahead
        needed_s = RESERVE_MARGIN * lane.cost.predict(1, self._size.efficient)
        return reserve_s <= needed_s, running.ahead

    def _budget(
        self, lane: LaneState, works: list[Work], decoders: int, target_s: float | None, now: float
    ) -> int | None:
        in_lane = lane is self._lanes.background and not self._shared
        beside = sum(w.remaining for w in works if not (w.foreground and w.decode))
        most = self._caps.prefill_threads if in_lane else self._caps.largest_step
        budget = lane.controller.budget(View(decoders, beside, target_s, most, self._caps.tile), now)
        self._counters.resets = sum(state.controller.resets for state in self._lanes.all)
        return budget

    def _limits(self, lane: LaneState, runnable: list[Running], cap: int | None, now: float) -> Limits:
        background = any(not running.foreground for running in runnable) and not self._settings.single_class
        in_lane = lane is self._lanes.background and not self._shared
        held = self._shared and self.held
        solo = self._shared and self._solo.active
        owed = self._shared and self._floor.owed(now, waiting=background and not held and not solo)
        prefill_s = lane.cost.prefill_s
        isolated = self._caps.largest_step
        if background:
            isolated = self._isolated(lane, runnable, now)
        return Limits(
            cap=None if in_lane else cap,
            isolated=isolated,
            largest_step=self._caps.largest_step,
            min_chunk=self._caps.min_chunk,
            tile=self._caps.tile,
            decode_only=lane.decode_only or solo,
            hold=held,
            owed=self._size.efficient if owed else 0,
            decode_weight=1.0 if self._caps.batched or not prefill_s else lane.cost.decode_s(1) / prefill_s,
        )

    def _isolated(self, lane: LaneState, runnable: list[Running], now: float) -> int:
        """Tokens of a step of background work alone: what it may lose, and what the reserve of paced streams covers."""
        tokens = self._size.tokens(lane.cost, now)
        reserves = [r.playout.deadline() for r in runnable if r.foreground and r.decoding]
        deadlines = [deadline for deadline in reserves if deadline is not None]
        if deadlines and lane.cost.prefill_s:
            slack_s = (min(deadlines) - now) / RESERVE_MARGIN - lane.cost.decode_s(len(deadlines))
            tokens = min(tokens, max(self._size.efficient, int(slack_s / lane.cost.prefill_s)))
        return tokens

    def _threads(self, lane: LaneState, step_plan: Plan, budget: int | None) -> int:
        if lane is self._lanes.background and not self._shared:
            return self._background_threads(budget)
        decode_only = all(work.decode for work, _ in step_plan.parts)
        if self._shared:
            return self._caps.solo_threads if decode_only else self._caps.prefill_threads
        if not decode_only and step_plan.total >= self._caps.tile:
            return self._caps.prefill_threads
        alone = not self._lanes.background.in_flight
        return self._caps.solo_threads if alone and self._caps.threads_invariant else self._caps.decode_threads

    def _background_threads(self, budget: int | None) -> int:
        """The share, less one thread for every three backstops in 10 s; all of them when nobody is watching."""
        if not self._lanes.foreground.running:
            return self._caps.prefill_threads
        fewer = len(self._backstops) // BACKSTOPS_A_THREAD
        return max(1, (budget or self._caps.prefill_threads) - fewer)

    def _bound_s(self, lane: LaneState, flight: Flight) -> float | None:
        """How long the step may run before the backstop acts; None where it does not apply."""
        if (
            self._caps.interruptible is Interruptible.NO
            or not flight.decoders
            or flight.target_s is None
            or not self._lanes.background.controller.steered
        ):
            return None
        if self._shared:
            return SHARED_BOUND * flight.target_s if flight.protected else None
        if flight.decodes < len(flight.parts) or not self._lanes.background.in_flight:
            return None
        return LANES_BOUND * flight.target_s

    def _note(self, lane: LaneState, step_plan: Plan, limits: Limits) -> str:
        if step_plan.floor:
            self._counters.floors += 1
            return "floor"
        if lane.decode_only:
            return "backstop"
        return "solo" if self._solo.active else ""

    def _join(self, lane: LaneState, flight: Flight) -> None:
        """Put the step in flight; it and the other lanes' steps are no longer alone where there are any."""
        for other in self._lanes.all:
            if other is not lane and other.in_flight:
                flight.alone = False
                for theirs in other.in_flight:
                    theirs.alone = False
        lane.in_flight.append(flight)
        lane.last_flight = flight

    def _pin_background(self) -> None:
        """Keep the background off the cores the foreground decodes on, while it does."""
        if self._cores is None or self._shared:
            return
        wanted = bool(self._lanes.foreground.running)
        if wanted != self._pinned:
            self._lanes.background.lane.pin(self._cores if wanted else None)
            self._pinned = wanted

    # --- committing -------------------------------------------------------------------------------------------------

    def commit(self, result: StepResult, on_step: Callable[[StepRecord], None] | None) -> None:
        """Account for a step that has ended, deliver its tokens and let the controller learn from it."""
        began = time.perf_counter()
        lane = next(lane for lane in self._lanes.all if lane.name == result.lane)
        flight = lane.in_flight.popleft()
        service_s = max(0.0, result.completed - max(result.submitted, lane.last_completed))
        lane.last_completed = result.completed
        gap_s = service_s + result.sampling_s
        update = self._learn(lane, flight, result, service_s, gap_s)
        self._account(flight, result, service_s)
        traces = self._settle(lane, flight, result)
        if result.error is not None:
            self._suspect(lane, flight, result)
        overhead_s = flight.plan_s + time.perf_counter() - began
        self._counters.plan_s.append(overhead_s)
        if on_step is not None:
            on_step(self._record(flight, result, traces, gap_s, update, overhead_s))

    def _learn(self, lane: LaneState, flight: Flight, result: StepResult, service_s: float, gap_s: float) -> Update:
        if result.interrupted and flight.backstopped and self._shared and flight.budget is not None:
            used = flight.total_tokens - flight.decoders
            return lane.controller.observe(Observation(gap_s, None, flight.target_s, flight.budget, used))
        if result.interrupted or result.error is not None:
            return Update(lane.controller.state, changed=False, reason=result.error or "interrupted")
        lane.cost.observe(flight.decodes, flight.prefill_tokens, service_s)
        decode_only = flight.decoders == len(flight.parts)
        if flight.decoders:
            self.last_gap_s = gap_s
        if decode_only and flight.alone:
            context = max(segment.end for _, segment, _ in flight.parts)
            self.targets.decode_only.observe(flight.decoders, context, gap_s, result.completed)
            self._solo.decoded(result.completed)
        elif flight.decoders:
            self._want_solo(flight, result.completed)
        update = self._observe(lane, flight, result, gap_s, decode_only=decode_only)
        self._counters.updates += update.changed
        return update

    def _want_solo(self, flight: Flight, now: float) -> None:
        """Hold the background for a few decodes where their uncontended time is not known or old."""
        unpaced = all(r.task.spec.pace is None for r, _, decode in flight.parts if decode and r.foreground)
        context = max(segment.end for _, segment, _ in flight.parts)
        stale = self.targets.decode_only.stale(flight.decoders, context, now)
        if unpaced and stale and self._lanes.background.controller.steered:
            self._solo.want(now)

    def _observe(
        self, lane: LaneState, flight: Flight, result: StepResult, gap_s: float, *, decode_only: bool
    ) -> Update:
        """Tell the controller whose actuator shaped this step."""
        if not self._shared and decode_only and flight.decoders and not flight.alone:
            controller = self._lanes.background.controller
            threads = int(controller.state or 0)
            return controller.observe(Observation(gap_s, None, flight.target_s, threads, threads))
        if not (flight.protected and flight.budget is not None):
            return Update(lane.controller.state, changed=False, reason="not a capped step")
        if flight.note:
            return Update(lane.controller.state, changed=False, reason=f"a {flight.note} step")
        next_call = flight.next_call if flight.next_call is not None else result.completed
        used = flight.total_tokens - flight.decoders
        interval_s = next_call - flight.planned_at
        return lane.controller.observe(Observation(gap_s, interval_s, flight.target_s, flight.budget, used))

    def _account(self, flight: Flight, result: StepResult, service_s: float) -> None:
        consumed = sum(part.consumed for part in result.segments)
        wasted = flight.total_tokens - consumed if result.interrupted else 0
        counters = self._counters
        counters.steps += 1
        counters.step_s.append(service_s)
        counters.computed_tokens += consumed + wasted
        counters.aborted_tokens += wasted
        if flight.interrupted_at is not None:
            counters.preemption_s.append(max(0.0, result.completed - flight.interrupted_at))
        self._floor.observe(result.completed, service_s, flight.background_tokens, flight.total_tokens)

    def _settle(self, lane: LaneState, flight: Flight, result: StepResult) -> list[SegmentTrace]:
        traces = []
        for (running, segment, decode), part in zip(flight.parts, result.segments, strict=True):
            running.settle(segment, part.consumed)
            traces.append(_trace(running, segment.start, len(segment.tokens), part.consumed, decode))
            if not running.foreground and part.consumed:
                self.background_progress = result.completed
                self.background_prompt_tokens += 0 if decode else part.consumed
            for position in sorted(part.tokens):
                self._accept(running, part.tokens[position], part.completed + result.sampling_s)
            if part.error is not None:
                self._finish(lane, running, Finish.ERROR, result.completed, part.error)
        if result.lost:
            self._lose(lane, result.lost)
        for running, _, _ in flight.parts:
            if running.in_flight == 0:
                self._retire(lane, running, result.completed)
        return traces

    def _accept(self, running: Running, token: int, at: float) -> None:
        if running.ended:
            return
        self._note_background(at)
        contended = self._background_seen >= running.last_token_at
        running.tokens.append(token)
        running.last_token_at = at
        self._delivery.token(running, token, at, contended=contended)
        if self._tokenizer_end(running, token):
            self._finish_running(running, Finish.STOP, at)
        elif len(running.task.record.output_token_ids) >= running.task.spec.max_tokens:
            self._finish_running(running, Finish.LENGTH, at)

    def _tokenizer_end(self, running: Running, token: int) -> bool:
        return not running.task.spec.sampling.ignore_eos and running.task.is_end(token)

    def _finish_running(self, running: Running, finish: Finish, at: float, error: str | None = None) -> None:
        running.ended = True
        self._delivery.finish(running.task, finish, at, error)

    def _finish(self, lane: LaneState, running: Running, finish: Finish, at: float, error: str | None = None) -> None:
        if not running.ended:
            self._finish_running(running, finish, at, error)
        if running.in_flight == 0:
            self._retire(lane, running, at)

    def _retire(self, lane: LaneState, running: Running, now: float) -> None:
        """Free what an ended task held; keep the shared prefix of one that goes on."""
        if running not in lane.running:
            return
        lane.prefixes.harvest(running, now)
        if running.ended:
            lane.release(running)
            if not self._lanes.foreground.count(Class.FOREGROUND) and self._solo.active:
                self._solo.stop(now)

    def _lose(self, lane: LaneState, sequences: tuple[int, ...]) -> None:
        lane.prefixes.forget(sequences)
        for running in lane.running:
            if running.sequence in sequences:
                running.restart()

    def _suspect(self, lane: LaneState, flight: Flight, result: StepResult) -> None:
        """A step was refused whole: run its tasks one at a time, and end the one that fails alone."""
        alive = [running for running, _, _ in flight.parts if not running.ended]
        for running in alive:
            running.failures += 1
            if len(flight.parts) == 1 and running.failures >= ATTEMPTS:
                self._finish(lane, running, Finish.ERROR, result.completed, result.error)
        lane.suspects.extend(running for running in alive if not running.ended and running not in lane.suspects)

    def _record(
        self,
        flight: Flight,
        result: StepResult,
        traces: list[SegmentTrace],
        gap_s: float,
        update: Update,
        overhead_s: float,
    ) -> StepRecord:
        return StepRecord(
            lane=result.lane,
            segments=tuple(traces),
            protected=flight.protected,
            threads=result.step.threads,
            budget=flight.budget,
            observed_s=gap_s,
            value_after=update.value,
            update=update.changed,
            reason=update.reason,
            submitted=result.submitted,
            completed=result.completed,
            sampling_s=result.sampling_s,
            basis=result.basis.value,
            interrupted=result.interrupted,
            error=result.error,
            plan_s=overhead_s,
            note=flight.note,
        )

    # --- stopping ---------------------------------------------------------------------------------------------------

    def arrived(self, task: Task, now: float) -> None:
        """A task was queued: background work in its way is interrupted where steps are shared."""
        lane = self.lane_of(task.task_class)
        if task.task_class is not Class.FOREGROUND or not self._shared or self._settings.single_class:
            return
        if not lane.fits(task):
            return
        for flight in lane.in_flight:
            if flight.background_tokens:
                if not flight.decoders and self._preempt(lane, flight, now):
                    self._size.interrupted(now)
                elif flight.decoders:
                    self._preempt(lane, flight, now)

    def end(self, task: Task, finish: Finish, now: float, error: str | None) -> None:
        """End a running task from outside; the step that holds it is stopped where that saves time."""
        lane = self.lane_of(task.task_class)
        running = next((r for r in lane.running if r.task is task), None)
        if running is None:
            self._delivery.finish(task, finish, now, error)
            return
        for flight in lane.in_flight:
            if any(part is running for part, _, _ in flight.parts):
                self._preempt(lane, flight, now)
        self._finish(lane, running, finish, now, error)

    def interrupt_all(self, now: float) -> None:
        """Stop every step: the engine is closing."""
        for lane in self._lanes.all:
            for flight in lane.in_flight:
                self._interrupt(lane, flight, now)

    def hold(self, held: bool, now: float) -> None:
        """Hold or release all background work."""
        self._note_background(now)
        self.held = held

    def enforce_bounds(self, now: float) -> None:
        """The backstop: a foreground step past its bound is freed of what stretches it."""
        while self._backstops and self._backstops[0] < now - BACKSTOP_WINDOW_S:
            self._backstops.popleft()
        bound = self._bound()
        if bound is None or now < bound:
            return
        lane = self._lanes.foreground
        flight = lane.in_flight[0]
        flight.backstopped = True
        self._counters.backstops += 1
        self._backstops.append(now)
        if self._shared:
            lane.decode_only = self._interrupt(lane, flight, now)
        else:
            for theirs in self._lanes.background.in_flight:
                self._interrupt(self._lanes.background, theirs, now)

    def _bound(self) -> float | None:
        """When the foreground step that runs now has run too long; None where there is none to stop."""
        lane = self._lanes.foreground
        if not lane.in_flight:
            return None
        flight = lane.in_flight[0]
        if flight.bound_s is None or flight.backstopped:
            return None
        return max(flight.submitted, lane.last_completed) + flight.bound_s

    def next_wake(self, now: float) -> float | None:
        """When something must happen although no step ends: a bound passes, or a paced stream needs its next token."""
        bound = self._bound()
        times = [] if bound is None else [bound]
        lane = self._lanes.foreground
        if not lane.in_flight:
            for running in lane.running:
                deadline = running.playout.deadline()
                if deadline is not None and not running.ended and running.decoding:
                    times.append(max(now, deadline - RESERVE_LOW_S))
        return min(times) if times else None

    def waiting_for(self) -> str:
        """What background work waits for, for people."""
        lane = self._lanes.background
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
        self._counters.preemptions += 1
        return True

    def _interrupt(self, lane: LaneState, flight: Flight, now: float) -> bool:
        if self._caps.interruptible is Interruptible.NO or flight.interrupted_at is not None:
            return False
        flight.interrupted_at = now
        lane.lane.interrupt(flight.handle)
        return True

    def _note_background(self, now: float) -> None:
        """Remember when background work last existed (work held on request does not count, unless in flight)."""
        lane = self._lanes.background
        running = any(flight.background_tokens for flight in lane.in_flight)
        if running or (not self.held and (self._background_waiting or lane.has_background())):
            self._background_seen = now


def _trace(running: Running, start: int, tokens: int, consumed: int, decode: bool) -> SegmentTrace:
    record = running.task.record
    kind = "decode" if decode else "prefill"
    return SegmentTrace(record.request_id, record.task_class.value, kind, start, tokens, consumed)
