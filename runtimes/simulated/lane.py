"""A simulated lane: its steps one after another, and its KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from dlfp_edge.runtime import (
    PREVIOUS,
    Basis,
    Interruptible,
    LaneSpec,
    Output,
    Rollback,
    Sampling,
    Segment,
    SegmentResult,
    Step,
    StepResult,
    Transfer,
)

from .checks import check_open, check_outside, check_step
from .choice import Chooser
from .contention import Demand
from .cost import Cost, Work
from .flight import Flight, batch, copying, one_by_one
from .kv import KvCache, Saved
from .mode import Mode
from .timeline import Timeline


@dataclass(slots=True)
class World:
    """What the lanes of one runtime share.

    Step `n` of the runtime (counted from 0 in the order of submission) fails if `n` is in `fail_steps`. `noise` is the
    standard deviation of the logarithm of a step's time.
    """

    timeline: Timeline
    cost: Cost
    mode: Mode
    random: Random
    cpus: tuple[int, ...]
    fail_steps: frozenset[int] = frozenset()
    noise: float = 0.0
    end_probability: float = 0.0
    submitted: int = 0


class SimulatedLane:
    """Implements `dlfp_edge.runtime.Lane`. `kv` may be looked into."""

    def __init__(self, spec: LaneSpec, world: World) -> None:
        self.spec = spec
        self.reads_all = False
        self.kv = KvCache(spec.context)
        self.running: Flight | None = None
        self._queue: list[Flight] = []
        self._world = world
        self._cores: frozenset[int] = frozenset()
        self._share = 0.0
        self._share_since = 0.0
        self._cpu_s = 0.0
        self._shut = False
        self.sequence_context = min(world.mode.sequence_context, spec.context)
        self._set_cores(spec.cores)

    # The port

    def submit(self, step: Step) -> int:
        world = self._world
        world.timeline.catch_up()
        if self._shut:
            raise ValueError("the lane is shut")
        check_step(step, self._pending, self.kv, world.mode)
        now = world.timeline.clock.now()
        order, marks, work = self._course(step)
        slower = world.random.lognormvariate(0.0, world.noise) if world.noise else 1.0
        flight = Flight(world.submitted, step, now, order, marks, work, slower)
        world.submitted += 1
        self._queue.append(flight)
        if self.running is None:
            self._begin_next(now)
            world.timeline.repace(now)
        return flight.handle

    def _course(self, step: Step) -> tuple[tuple[int, ...], tuple[float, ...], Work]:
        """In which order a step runs, where it can be stopped, and its work."""
        world = self._world
        if step.transfer is not None:
            return copying(step, world.cost)
        return batch(step, world.cost, world.mode.ubatch) if world.mode.batched else one_by_one(step, world.cost)

    def interrupt(self, handle: int) -> None:
        world = self._world
        world.timeline.catch_up()
        now = world.timeline.clock.now()
        for flight in self._queue:
            if flight.handle != handle or flight.step.transfer or world.mode.interruptible is Interruptible.NO:
                continue
            if flight is not self.running:
                flight.cancelled = True
            elif world.mode.interruptible is Interruptible.NODES:
                flight.stop(now + world.cost.interrupt_s)
            else:
                flight.stop_at_mark(now)

    def pin(self, cores: Sequence[int] | None) -> None:
        timeline = self._world.timeline
        timeline.catch_up()
        self._set_cores(cores)
        timeline.repace(timeline.clock.now())

    def open(self, sequence: int, sampling: Sampling) -> None:
        self._world.timeline.catch_up()
        if not 0 <= sequence < self.spec.sequences:
            raise ValueError(f"sequence {sequence} is not in 0..{self.spec.sequences - 1}")
        if sequence in self.kv:
            raise ValueError(f"sequence {sequence} is open already")
        self.kv.open(sequence, self._chooser(sampling))

    def adopt(self, sequence: int, sampling: Sampling) -> None:
        self._world.timeline.catch_up()
        check_outside(sequence, self._pending)
        check_open(sequence, self.kv)
        self.kv.adopt(sequence, self._chooser(sampling))

    def _chooser(self, sampling: Sampling) -> Chooser:
        random = self._world.random if sampling.seed is None else Random(sampling.seed)
        salt = random.getrandbits(64) if sampling.temperature > 0 else 0
        return Chooser(salt, self._world.end_probability, sampling)

    def close(self, sequence: int) -> None:
        self._world.timeline.catch_up()
        check_outside(sequence, self._pending)
        self.kv.close(sequence)

    def keeps(self, sequence: int, length: int) -> bool:
        self._world.timeline.catch_up()
        held, mode = self.kv.length(sequence), self._world.mode
        if length in (0, held) or mode.rollback is Rollback.ANY:
            return True
        return mode.rollback is Rollback.WINDOW and held <= mode.window

    def truncate(self, sequence: int, length: int) -> None:
        self._world.timeline.catch_up()
        check_outside(sequence, self._pending)
        check_open(sequence, self.kv)
        if not 0 <= length <= self.kv.length(sequence) or not self.keeps(sequence, length):
            raise ValueError(f"sequence {sequence} holds {self.kv.length(sequence)} cells and cannot keep {length}")
        self.kv.truncate(sequence, length)

    def fork(self, source: int, target: int, length: int) -> None:
        if not self._world.mode.fork:
            raise ValueError("this runtime cannot fork")
        self._world.timeline.catch_up()
        for sequence in (source, target):
            check_outside(sequence, self._pending)
            check_open(sequence, self.kv)
        if self.kv.length(target):
            raise ValueError(f"sequence {target} is not empty")
        if not 0 <= length <= self.kv.length(source):
            raise ValueError(f"sequence {source} has no {length} cells")
        if not self.keeps(source, length):
            raise ValueError(f"of sequence {source} the first {length} cells are no longer whole")
        self.kv.fork(source, target, length)

    def kv_used(self) -> int:
        self._world.timeline.catch_up()
        return self.kv.used

    def cpu_s(self) -> float:
        timeline = self._world.timeline
        timeline.catch_up()
        self._account(timeline.clock.now())
        return self._cpu_s

    def shut(self) -> None:
        self._shut = True
        self._queue.clear()
        self.running = None
        self.kv = KvCache(0)
        timeline = self._world.timeline
        if self in timeline.runners:
            timeline.runners.remove(self)
            timeline.repace(timeline.clock.now())

    # What the timeline asks

    def demand(self) -> Demand:
        assert self.running is not None
        return Demand(self.running.step.threads, self._cores, self.spec.priority)

    def set_pace(self, now: float, cores: float, stretch: float) -> None:
        assert self.running is not None
        self._account(now)
        self._share = cores
        self.running.set_pace(now, self.running.work.seconds(cores) * stretch)

    def end(self, now: float) -> None:
        flight = self.running
        assert flight is not None
        self._account(now)
        self._share = 0.0
        flight.advance(now)
        self._queue.pop(0)
        self.running = None
        self._finish(flight, now)
        self._begin_next(now)

    # Steps

    @property
    def _pending(self) -> list[Step]:
        return [flight.step for flight in self._queue]

    def _begin_next(self, now: float) -> None:
        """Start the next step of the queue that can run; refuse those before it."""
        while self._queue:
            flight = self._queue[0]
            segments = flight.step.segments
            if flight.cancelled or any(self.kv.length(item.sequence) != item.start for item in segments):
                self._post(flight, now, [_nothing(now)] * len(segments), interrupted=True)
            elif self.kv.used + _new_cells(flight.step) > self.kv.capacity:
                message = (
                    f"the step needs {_new_cells(flight.step)} KV cells, {self.kv.capacity - self.kv.used} are free"
                )
                self._post(flight, now, [_nothing(now)] * len(segments), error=message)
            else:
                self.running = flight
                flight.begin(now)
                return
            self._queue.pop(0)

    def _finish(self, flight: Flight, now: float) -> None:
        segments, transfer = flight.step.segments, flight.step.transfer
        fails = flight.handle in self._world.fail_steps
        if fails and self._world.mode.loses_on_failure:
            lost = tuple(segment.sequence for segment in segments)
            for sequence in lost:
                self.kv.truncate(sequence, 0)
            self._post(flight, now, [_nothing(now)] * len(segments), error="injected failure", lost=lost)
            return
        if transfer is not None:
            self._finish_copy(flight, transfer, now, error="injected failure" if fails else None)
            return
        complete = len(flight.passed) == len(flight.marks)
        if complete and self._world.mode.batched:
            results = [self._commit(segment, len(segment.tokens), now) for segment in segments]
        elif self._world.mode.batched:
            results = [self._commit(segment, count, now) for segment, count in self._certain(flight)]
        else:
            results = self._commit_in_order(flight, now)
        if fails:
            last = segments[-1]
            self.kv.truncate(last.sequence, last.start)
            results[-1] = SegmentResult(0, {}, now, error="injected failure")
        self._post(flight, now, results, interrupted=not complete)

    def _finish_copy(self, flight: Flight, transfer: Transfer, now: float, error: str | None) -> None:
        content: Saved | None = None
        if error is None and transfer.content is None:
            content = self.kv.copy_out(transfer.sequence, transfer.start, transfer.end)
        elif error is None:
            assert isinstance(transfer.content, Saved)
            self.kv.copy_in(transfer.sequence, transfer.content)
        self._post(flight, now, [], error=error, content=content)

    def _certain(self, flight: Flight) -> Iterator[tuple[Segment, int]]:
        """Of each segment of an aborted batch, the tokens in whole ubatches before the first output, which is lost."""
        left = len(flight.passed) * self._world.mode.ubatch
        for segment in flight.step.segments:
            executed = min(left, len(segment.tokens))
            left -= executed
            first_output = min(segment.outputs, default=segment.end) - segment.start
            yield segment, min(executed, first_output)

    def _commit_in_order(self, flight: Flight, now: float) -> list[SegmentResult]:
        segments = flight.step.segments
        results = [_nothing(now)] * len(segments)
        for index, passed in zip(flight.order, flight.passed, strict=False):
            results[index] = self._commit(segments[index], len(segments[index].tokens), passed)
        return results

    def _commit(self, segment: Segment, count: int, completed: float) -> SegmentResult:
        """Put the first `count` tokens into the cache and sample where that was asked for."""
        kv, sequence, tokens = self.kv, segment.sequence, segment.tokens
        if tokens[0] == PREVIOUS:
            sampled = kv.sampled_at(sequence, segment.start - 1)
            assert sampled is not None
            tokens = (sampled, *tokens[1:])
        kv.append(sequence, tokens if count == len(tokens) else tokens[:count])
        end = segment.start + count
        there = [position for position in segment.outputs if position < end]
        outputs = {at: kv.sample(sequence, at) for at in there if segment.outputs[at] is Output.TOKEN}
        likely = {position: kv.logprobs(sequence, position, token) for position, token in outputs.items()}
        logprobs = {position: one for position, one in likely.items() if one is not None}
        hidden = [kv.hidden(sequence, at) for at in there if segment.outputs[at] is Output.EMBEDDING]
        pooled = np.sum(hidden, axis=0) if hidden else None
        return SegmentResult(count, outputs, completed, logprobs=logprobs, embedding=pooled)

    def _post(
        self,
        flight: Flight,
        now: float,
        results: Sequence[SegmentResult],
        interrupted: bool = False,
        error: str | None = None,
        lost: tuple[int, ...] = (),
        content: Saved | None = None,
    ) -> None:
        world = self._world
        sampling_s = world.cost.sampling_s * sum(len(result.tokens) for result in results)
        if world.mode.depth == 1:
            sampling_s += world.cost.host_s  # the next step waits for it, so every gap holds it
        basis = Basis.SYNCHRONOUS if world.mode.depth == 1 else Basis.CALLBACK
        result = StepResult(
            lane=self.spec.name,
            handle=flight.handle,
            step=flight.step,
            segments=tuple(results),
            submitted=flight.submitted,
            completed=now,
            sampling_s=sampling_s,
            clock=world.timeline.clock.name,
            basis=basis,
            interrupted=interrupted,
            error=error,
            lost=lost,
            content=content,
        )
        world.timeline.post(result, now + max(sampling_s, world.cost.host_s))

    # Cores

    def _set_cores(self, cores: Sequence[int] | None) -> None:
        known = frozenset(self._world.cpus)
        self._cores = known if cores is None else (known & frozenset(cores)) or known

    def _account(self, now: float) -> None:
        self._cpu_s += self._share * (now - self._share_since)
        self._share_since = now


def _nothing(now: float) -> SegmentResult:
    return SegmentResult(0, {}, now)


def _new_cells(step: Step) -> int:
    """KV cells a step fills."""
    transfer = step.transfer
    return step.total_tokens if transfer is None or transfer.content is None else transfer.end - transfer.start
