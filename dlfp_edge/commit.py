"""What became of a step: tokens delivered, KV cells accounted for, and the controller's lesson."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dlfp_edge.control import Observation, Update
from dlfp_edge.lane_state import Flight, LaneState
from dlfp_edge.running import Running
from dlfp_edge.runtime import NOT_CHOSEN, Logprobs, StepResult
from dlfp_edge.state import State
from dlfp_edge.task import Finish
from dlfp_edge.trace import SegmentTrace, StepRecord

ATTEMPTS = 3

REST_S = 0.25
"""A step that begins so long after the lane's last one finds cold caches and a low clock: its time says little."""


class Committer:
    """Accounts for the steps that have ended."""

    def __init__(self, state: State) -> None:
        self._state = state

    def commit(self, result: StepResult, on_step: Callable[[StepRecord], None] | None) -> None:
        """Account for a step that has ended, deliver its tokens and let the controller learn from it."""
        began = time.perf_counter()
        lane = next(lane for lane in self._state.lanes.all if lane.name == result.lane)
        flight = lane.in_flight.popleft()
        service_s = max(0.0, result.completed - max(result.submitted, lane.last_completed))
        since, lane.last_completed = lane.last_completed, result.completed
        if flight.copy is not None:
            self._copied(lane, flight, result, on_step)
            return
        step_s = service_s + result.sampling_s
        rested = result.submitted - since - flight.waited_s > REST_S  # not where it was put off for the background
        update = self._learn(lane, flight, result, step_s, rested=rested)
        self._account(flight, result, service_s)
        self._credit_background(lane, flight, result, since, service_s)
        self._settle(lane, flight, result)
        if result.error is not None:
            self._suspect(lane, flight, result)
        elif lane.suspects:
            # It ran alone: whatever the step was refused for, this task need not be the reason.
            lane.suspects = [running for running in lane.suspects if running is not flight.parts[0][0]]
        overhead_s = flight.plan_s + time.perf_counter() - began
        self._state.counters.plan_s.append(overhead_s)
        if on_step is not None:
            on_step(_record(flight, result, flight.waited_s + step_s, update, overhead_s))

    def _copied(
        self, lane: LaneState, flight: Flight, result: StepResult, on_step: Callable[[StepRecord], None] | None
    ) -> None:
        assert flight.copy is not None
        running, transfer = flight.copy
        self._state.pressure.copied(lane, running, transfer, result)
        if running.ended:
            self._state.retire(lane, running, result.completed)
        if on_step is not None:
            update = Update(lane.controller.state, changed=False, reason=f"a {flight.note} step")
            on_step(_record(flight, result, result.completed - result.submitted, update, flight.plan_s))

    def _learn(self, lane: LaneState, flight: Flight, result: StepResult, step_s: float, *, rested: bool) -> Update:
        if result.interrupted and flight.backstopped and self._state.shared and flight.budget is not None:
            used = flight.total_tokens - flight.decoders
            lane.cost.observe(flight.decodes, flight.prefill_tokens, step_s, flight.decode_s)  # at least so long
            return lane.controller.observe(Observation(step_s, None, flight.target_s, flight.budget, used))
        if result.interrupted or result.error is not None:
            return Update(lane.controller.state, changed=False, reason=result.error or "interrupted")
        if flight.decoders:
            self._state.last_gap_s = flight.waited_s + step_s
        if rested and lane.cost.prefill_s is not None:
            return Update(lane.controller.state, changed=False, reason="the first step after a rest")
        lane.cost.observe(flight.decodes, flight.prefill_tokens, step_s, flight.decode_s)
        decode_only = flight.decoders == len(flight.parts)
        if decode_only and flight.alone:
            times = self._state.decode_times
            times.observe(flight.threads, flight.decoders, flight.cells_read, step_s, result.completed)
            self._state.solo.decoded(result.completed)
        elif flight.decoders and (decode_only or self._state.shared):
            self._want_solo(flight, result.completed)
        update = self._observe(lane, flight, result, step_s, decode_only=decode_only)
        self._state.counters.updates += update.changed
        return update

    def _want_solo(self, flight: Flight, now: float) -> None:
        """Hold the background for a few decodes where their uncontended time is not known or old."""
        unpaced = all(r.task.spec.pace is None for r, _, decode in flight.parts if decode and r.foreground)
        if not unpaced or not self._state.lanes.background.controller.steered:
            return
        times = self._state.decode_times
        urgent = times.alone_s(flight.decoders) is None or times.shifted(flight.threads, flight.decoders, now)
        if urgent or times.stale(flight.decoders, flight.cells_read, now):
            self._state.solo.want(now, urgent=urgent)

    def _observe(
        self, lane: LaneState, flight: Flight, result: StepResult, step_s: float, *, decode_only: bool
    ) -> Update:
        """Tell the controller whose actuator shaped this step."""
        if flight.note == "floor":
            return Update(lane.controller.state, changed=False, reason="a floor step")
        if not self._state.shared and decode_only and flight.decoders and not flight.alone:
            beside = self._state.lanes.background.last_flight
            assert beside is not None, "the step was not alone"
            if beside.copy is not None:
                return Update(lane.controller.state, changed=False, reason="beside a copy of KV cells")
            times = self._state.decode_times
            times.observe_beside(flight.threads, flight.decoders, flight.cells_read, step_s, result.completed)
            self._state.targets.check_reached(flight.decoders, result.completed)
            observation = Observation(step_s, None, flight.target_s, beside.threads, beside.threads)
            return self._state.lanes.background.controller.observe(observation)
        if not (flight.protected and flight.budget is not None):
            return Update(lane.controller.state, changed=False, reason="not a capped step")
        if flight.note:
            return Update(lane.controller.state, changed=False, reason=f"a {flight.note} step")
        next_call = flight.next_call if flight.next_call is not None else result.completed
        used = flight.total_tokens - flight.decoders
        interval_s = next_call - flight.planned_at
        return lane.controller.observe(Observation(step_s, interval_s, flight.target_s, flight.budget, used))

    def _account(self, flight: Flight, result: StepResult, service_s: float) -> None:
        consumed = sum(part.consumed for part in result.segments)
        wasted = flight.total_tokens - consumed if result.interrupted else 0
        counters = self._state.counters
        counters.steps += 1
        counters.step_s.append(service_s)
        counters.computed_tokens += consumed + wasted
        counters.aborted_tokens += wasted
        if flight.preempted and flight.interrupted_at is not None:
            counters.preemption_s.append(max(0.0, result.completed - flight.interrupted_at))

    def _credit_background(
        self, lane: LaneState, flight: Flight, result: StepResult, since: float, service_s: float
    ) -> None:
        """Count towards the floor what the background had of the device since the step before."""
        if self._state.shared:
            self._state.floor.observe(result.completed, service_s * flight.background_tokens / flight.total_tokens)
        elif lane is self._state.lanes.foreground:
            most = max(self._state.caps.prefill_threads, self._state.decode_times.most)
            taken_s = service_s * flight.threads / most
            self._state.floor.observe(result.completed, result.completed - since - taken_s)

    def _settle(self, lane: LaneState, flight: Flight, result: StepResult) -> None:
        self._state.note_background(result.completed)
        for (running, segment, decode), part in zip(flight.parts, result.segments, strict=True):
            running.settle(segment, part.consumed)
            if part.consumed:
                running.failures = 0
            if not running.foreground and part.consumed:
                self._state.background_progress = result.completed
                self._state.background_prompt_tokens += 0 if decode else part.consumed
            if part.embedding is not None and not running.ended:
                self._embed(running, part.embedding, part.completed)
            for position in sorted(part.tokens):
                logprobs = part.logprobs.get(position)
                self._accept(running, part.tokens[position], logprobs, part.completed + result.sampling_s)
            if part.error is not None:
                self._state.finish(lane, running, Finish.ERROR, result.completed, part.error)
        if result.lost:
            self._lose(lane, result.lost)
        for running, _, decode in flight.parts:
            if result.interrupted and not decode:
                self._lengthen_rest(lane, running)
            if running.in_flight == 0:
                self._state.retire(lane, running, result.completed)

    def _lengthen_rest(self, lane: LaneState, running: Running) -> None:
        """Give back cells where an interruption left less of a prompt than the shortest chunk the runtime may have."""
        keep = max(0, len(running.tokens) - self._state.caps.min_chunk)
        short = running.in_flight == 0 and not running.ended and running.computed > keep
        if self._state.caps.min_chunk <= 1 or not short:
            return
        if running.task.spec.embed:  # hidden states of what is given back are counted already
            keep = 0
            running.restart()
        lane.lane.truncate(running.sequence, keep)
        running.computed = running.planned = keep

    def _accept(self, running: Running, token: int, logprobs: Logprobs | None, at: float) -> None:
        if running.ended:
            return
        spec, structured = running.task.spec, running.task.structured
        left = spec.max_tokens - len(running.task.record.output_token_ids)
        if structured is not None:
            tokens, finish = structured.follow(token, left)
        elif running.task.is_end(token) and not spec.sampling.ignore_eos:
            tokens, finish = [token], Finish.STOP
        else:
            tokens, finish = [token], Finish.LENGTH if left <= 1 else None
        if logprobs is not None and tokens != [token]:
            logprobs = NOT_CHOSEN
        if any(self._deliver(running, each, logprobs, at) for each in tokens):
            finish = Finish.STOP  # at a stop string; what was to come after it is not delivered
        if finish is not None:
            self._state.finish_running(running, finish, at)

    def _deliver(self, running: Running, token: int, logprobs: Logprobs | None, at: float) -> bool:
        """Whether the token completes a stop string."""
        contended = self._state.background_seen >= running.last_token_at
        running.tokens.append(token)
        running.last_token_at = at
        if logprobs is not None:
            running.task.record.logprobs.append(logprobs)
        return self._state.delivery.token(running, token, at, contended=contended)

    def _embed(self, running: Running, hidden: npt.NDArray[np.float32], at: float) -> None:
        embedding = running.pool(hidden)
        if embedding is not None:
            running.task.record.embedding = embedding
            self._state.finish_running(running, Finish.STOP, at)

    def _lose(self, lane: LaneState, sequences: tuple[int, ...]) -> None:
        lane.sequences.forget(sequences)
        for running in lane.running:
            if running.sequence in sequences:
                if running.active and not running.in_flight and not running.ended:
                    running.put_off()  # what it shared is gone too: it needs more cells than before
                else:
                    running.restart()

    def _suspect(self, lane: LaneState, flight: Flight, result: StepResult) -> None:
        """A step was refused whole: run its tasks one at a time, and end the one that fails alone."""
        alive = [running for running, _, _ in flight.parts if not running.ended]
        for running in alive:
            running.failures += 1
            if len(flight.parts) == 1 and running.failures >= ATTEMPTS:
                self._state.finish(lane, running, Finish.ERROR, result.completed, result.error)
        lane.suspects.extend(running for running in alive if not running.ended and running not in lane.suspects)


def _record(
    flight: Flight,
    result: StepResult,
    gap_s: float,
    update: Update,
    overhead_s: float,
) -> StepRecord:
    return StepRecord(
        lane=result.lane,
        segments=tuple(
            _trace(running, segment.start, len(segment.tokens), part.consumed, decode)
            for (running, segment, decode), part in zip(flight.parts, result.segments, strict=True)
        ),
        protected=flight.protected,
        threads=result.step.threads,
        budget=flight.budget,
        observed_s=gap_s,
        target_s=flight.target_s if flight.decoders and (flight.protected or not flight.alone) else None,
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


def _trace(running: Running, start: int, tokens: int, consumed: int, decode: bool) -> SegmentTrace:
    record = running.task.record
    kind = "decode" if decode else "prefill"
    return SegmentTrace(record.request_id, record.task_class.value, kind, start, tokens, consumed)
