"""A simulated lane: its steps one after another, and its KV cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from dlfp_edge.runtime import (
    PREVIOUS,
    Basis,
    Interruptible,
    LaneSpec,
    Sampling,
    Segment,
    SegmentResult,
    Step,
    StepResult,
)

from .contention import Demand
from .cost import CostModel
from .flight import Flight, batch, one_by_one
from .kv import KvCache
from .mode import Mode
from .timeline import Timeline
from .tokens import VOCABULARY


@dataclass(slots=True)
class World:
    """What the lanes of one runtime share.

    Step `n` of the runtime (counted from 0 in the order of submission) fails if `n` is in `fail_steps`. `noise` is the
    standard deviation of the logarithm of a step's time.
    """

    timeline: Timeline
    cost: CostModel
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
        self._validate(step)
        now = world.timeline.clock.now()
        order, marks, work = (
            batch(step, world.cost, world.mode.ubatch) if world.mode.batched else one_by_one(step, world.cost)
        )
        slower = world.random.lognormvariate(0.0, world.noise) if world.noise else 1.0
        flight = Flight(world.submitted, step, now, order, marks, work, slower)
        world.submitted += 1
        self._queue.append(flight)
        if self.running is None:
            self._begin_next(now)
            world.timeline.repace(now)
        return flight.handle

    def interrupt(self, handle: int) -> None:
        world = self._world
        world.timeline.catch_up()
        now = world.timeline.clock.now()
        for flight in self._queue:
            if flight.handle != handle or world.mode.interruptible is Interruptible.NO:
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
        random = self._world.random if sampling.seed is None else Random(sampling.seed)
        salt = random.getrandbits(64) if sampling.temperature > 0 else 0
        self.kv.open(sequence, salt, 0.0 if sampling.ignore_eos else self._world.end_probability)

    def close(self, sequence: int) -> None:
        self._require_outside(sequence)
        self.kv.close(sequence)

    def truncate(self, sequence: int, length: int) -> None:
        self._require_outside(sequence)
        self._require_open(sequence)
        if not 0 <= length <= self.kv.length(sequence):
            raise ValueError(f"sequence {sequence} holds {self.kv.length(sequence)} cells, not {length}")
        self.kv.truncate(sequence, length)

    def fork(self, source: int, target: int, length: int) -> None:
        if not self._world.mode.fork:
            raise ValueError("this runtime cannot fork")
        for sequence in (source, target):
            self._require_outside(sequence)
            self._require_open(sequence)
        if self.kv.length(target):
            raise ValueError(f"sequence {target} is not empty")
        if not 0 <= length <= self.kv.length(source):
            raise ValueError(f"sequence {source} has no {length} cells")
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

    def _begin_next(self, now: float) -> None:
        """Start the next step of the queue that can run; refuse those before it."""
        while self._queue:
            flight = self._queue[0]
            segments = flight.step.segments
            if flight.cancelled or any(self.kv.length(item.sequence) != item.start for item in segments):
                self._post(flight, now, [_nothing(now)] * len(segments), interrupted=True)
            elif self.kv.used + flight.step.total_tokens > self.kv.capacity:
                message = (
                    f"the step needs {flight.step.total_tokens} KV cells, {self.kv.capacity - self.kv.used} are free"
                )
                self._post(flight, now, [_nothing(now)] * len(segments), error=message)
            else:
                self.running = flight
                flight.begin(now)
                return
            self._queue.pop(0)

    def _finish(self, flight: Flight, now: float) -> None:
        segments = flight.step.segments
        fails = flight.handle in self._world.fail_steps
        if fails and self._world.mode.loses_on_failure:
            lost = tuple(segment.sequence for segment in segments)
            for sequence in lost:
                self.kv.truncate(sequence, 0)
            self._post(flight, now, [_nothing(now)] * len(segments), error="injected failure", lost=lost)
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
        outputs = {position: kv.sample(sequence, position) for position in segment.outputs if position < end}
        return SegmentResult(count, outputs, completed)

    def _post(
        self,
        flight: Flight,
        now: float,
        results: Sequence[SegmentResult],
        interrupted: bool = False,
        error: str | None = None,
        lost: tuple[int, ...] = (),
    ) -> None:
        world = self._world
        sampling_s = world.cost.sampling_s * sum(len(result.tokens) for result in results)
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
        )
        world.timeline.post(result, now + sampling_s)

    # Checks

    def _validate(self, step: Step) -> None:
        mode = self._world.mode
        if self._shut:
            raise ValueError("the lane is shut")
        if len(self._queue) >= mode.depth:
            raise ValueError(f"the lane already has {mode.depth} step(s) submitted")
        if not step.segments or step.threads < 1:
            raise ValueError("a step needs a segment and a thread")
        if step.total_tokens > mode.largest_step:
            raise ValueError(f"a step of {step.total_tokens} tokens is larger than {mode.largest_step}")
        if len({segment.sequence for segment in step.segments}) < len(step.segments):
            raise ValueError("a step may have one segment of a sequence")
        for segment in step.segments:
            self._validate_segment(segment)

    def _validate_segment(self, segment: Segment) -> None:
        sequence, mode = segment.sequence, self._world.mode
        self._require_open(sequence)
        held = self.kv.length(sequence) + sum(len(item.tokens) for item in self._in_flight(sequence))
        if segment.start != held:
            raise ValueError(f"sequence {sequence} holds {held} cells, so a segment cannot start at {segment.start}")
        if not segment.tokens or segment.end > mode.sequence_context:
            raise ValueError(f"a segment needs a token and must end by {mode.sequence_context}")
        if 1 < len(segment.tokens) < mode.min_chunk and segment.start:
            raise ValueError(f"a chunk of {len(segment.tokens)} tokens is shorter than {mode.min_chunk}")
        if any(not segment.start <= position < segment.end for position in segment.outputs):
            raise ValueError(f"an output of sequence {sequence} is outside its segment")
        rest = segment.tokens
        if rest[0] == PREVIOUS:
            self._validate_previous(segment)
            rest = rest[1:]
        if rest and not (min(rest) >= 0 and max(rest) < VOCABULARY):
            raise ValueError(f"a token of sequence {sequence} is not in 0..{VOCABULARY - 1}")

    def _validate_previous(self, segment: Segment) -> None:
        position = segment.start - 1
        pending = any(position in item.outputs for item in self._in_flight(segment.sequence))
        sampled = self.kv.sampled_at(segment.sequence, position) is not None
        if self._world.mode.depth == 1 or not (pending or sampled):
            raise ValueError(f"sequence {segment.sequence} has no token on the device to continue with")

    def _in_flight(self, sequence: int) -> Iterator[Segment]:
        return (item for flight in self._queue for item in flight.step.segments if item.sequence == sequence)

    def _require_open(self, sequence: int) -> None:
        if sequence not in self.kv:
            raise ValueError(f"sequence {sequence} is not open")

    def _require_outside(self, sequence: int) -> None:
        self._world.timeline.catch_up()
        if any(True for _ in self._in_flight(sequence)):
            raise ValueError(f"sequence {sequence} is in a step in flight")

    # Cores

    def _set_cores(self, cores: Sequence[int] | None) -> None:
        known = frozenset(self._world.cpus)
        self._cores = known if cores is None else (known & frozenset(cores)) or known

    def _account(self, now: float) -> None:
        self._cpu_s += self._share * (now - self._share_since)
        self._share_since = now


def _nothing(now: float) -> SegmentResult:
    return SegmentResult(0, {}, now)
