"""What this machine can do with this model, measured through lanes at load in about three seconds.

Decode wants few threads and prefill many. The decode threads are the fewest whose step is within 1.55 times that of the
fastest count, since each thread saved goes to the background. Counts are tried in turns, and the fastest step of each
counts: what else runs on the machine can only make a step slower, and a probe is too short to average that out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from dlfp_edge.runtime import FEW, Lane, LaneSpec, Output, Priority, Runtime, Sampling, Segment, Step, StepResult

CLOSE_ENOUGH = 1.55
"""A little under the slowdown that lanes aim at (1.75), so that what the background adds still fits. On two cores one
thread took 1.3 to 1.45 times as long as two, and with two the background fell from 60% of its unprotected rate to 17%:
a bound of 1.4 lay in the noise between these."""
_CELLS = 1024
_PROMPT = 16
_ROUNDS, _DECODES_A_ROUND, _DECODE_BUDGET_S = 3, 5, 1.2
_FEW_CELLS, _FEW_BUDGET_S = 256, 0.8
_CHUNK, _SHORT_CHUNK, _CHUNK_BUDGET_S = 256, 64, 0.5
_BESIDE, _BESIDE_BUDGET_S = 12, 0.6
_PATIENCE_S = 5.0
"""After this long, on a slow or busy machine, the priority is not probed any more."""

OpenLane = Callable[[LaneSpec], Lane]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What was found, in seconds and threads. `decode_s_by_threads` are the fastest seen, `few_...` of `FEW` sequences.

    `beside_lowest_s` is a decode's time beside a background step of lowest priority on all CPUs, `beside_disjoint_s`
    beside one that keeps to other CPUs; both None where there is one CPU only or time was short.
    """

    decode_s_by_threads: dict[int, float]
    few_decodes_s_by_threads: dict[int, float]
    prefill_rate_by_threads: dict[int, float]
    beside_lowest_s: float | None = None
    beside_disjoint_s: float | None = None

    @property
    def solo_threads(self) -> int:
        """The count that decodes fastest."""
        return min(self.decode_s_by_threads, key=self.decode_s_by_threads.__getitem__)

    @property
    def decode_threads(self) -> int:
        """The fewest threads that decode nearly as fast."""
        bound_s = CLOSE_ENOUGH * self.decode_s_by_threads[self.solo_threads]
        return min(count for count, median_s in self.decode_s_by_threads.items() if median_s <= bound_s)

    @property
    def prefill_threads(self) -> int:
        """The count that prefills fastest."""
        return max(self.prefill_rate_by_threads, key=self.prefill_rate_by_threads.__getitem__)

    @property
    def priority_effective(self) -> bool | None:
        """Whether lowest priority keeps the background out of the foreground's way; None where not measured."""
        if self.beside_lowest_s is None or self.beside_disjoint_s is None:
            return None
        return self.beside_lowest_s <= CLOSE_ENOUGH * self.beside_disjoint_s


def probe(runtime: Runtime, open_lane: OpenLane, most_threads: int, cpus: Sequence[int]) -> ProbeResult:
    """Measure decode and prefill at several thread counts, then a decode beside a background step on `cpus`, if any."""
    began = runtime.clock.now()
    counts = thread_counts(most_threads, physical_cores())
    few = _few_decodes(runtime, open_lane, counts)
    front = _Bench(runtime, open_lane(LaneSpec("probe", Priority.NORMAL, 1, _CELLS, threads_invariant=True)))
    try:
        decode = front.fastest_decodes(counts, _DECODE_BUDGET_S)
        prefill = front.prefill_rates(prefill_counts(most_threads, physical_cores()))
        found = ProbeResult(decode, few, prefill)
        if most_threads < 2 or len(cpus) < 2 or runtime.clock.now() - began > _PATIENCE_S:
            return found
        back = _Bench(runtime, open_lane(LaneSpec("probe beside", Priority.LOWEST, 1, 2 * _CELLS)))
        try:
            beside = _beside(front, back, found, cpus)
        finally:
            back.lane.shut()
        return ProbeResult(decode, few, prefill, *beside)
    finally:
        front.lane.shut()


def _few_decodes(runtime: Runtime, open_lane: OpenLane, counts: Sequence[int]) -> dict[int, float]:
    """Times of `FEW` decodes together for each thread count; none where a lane cannot have as many sequences."""
    if runtime.capabilities.sequences < FEW:
        return {}
    spec = LaneSpec("probe few", Priority.NORMAL, FEW, FEW * _FEW_CELLS, threads_invariant=True)
    bench = _Bench(runtime, open_lane(spec))
    try:
        return bench.fastest_decodes(counts, _FEW_BUDGET_S)
    finally:
        bench.lane.shut()


def physical_cores() -> int:
    """Physical cores of the machine, 1 where the system does not say."""
    return psutil.cpu_count(logical=False) or 1


def thread_counts(most: int, physical: int) -> list[int]:
    """Counts worth trying for decodes: powers of two, the physical cores, and all."""
    counts = {1 << power for power in range(most.bit_length())} | {most}
    if physical <= most:
        counts.add(physical)
    return sorted(count for count in counts if count <= most)


def prefill_counts(most: int, physical: int) -> list[int]:
    """Counts worth trying for prefill: all, and the physical cores where that is fewer."""
    return sorted({most, min(most, physical)}) if physical > 1 else [most]


def _beside(front: _Bench, back: _Bench, found: ProbeResult, cpus: Sequence[int]) -> tuple[float, float]:
    """A decode's median beside a lowest-priority step on all CPUs, and beside one on other CPUs than its own."""
    own = min(found.decode_threads, len(cpus) - 1)
    back.start_prefill(found.prefill_threads)
    lowest_s = front.decode_median(own)
    back.stop()
    front.lane.pin(cpus[:own])
    back.lane.pin(cpus[own:])
    back.start_prefill(len(cpus) - own)
    disjoint_s = front.decode_median(own)
    back.stop()
    return lowest_s, disjoint_s


class _Bench:
    """Steps of one lane, timed: decodes on all its sequences, prefill on the first."""

    def __init__(self, runtime: Runtime, lane: Lane) -> None:
        self.lane = lane
        self._runtime = runtime
        self._handle: int | None = None
        self._sequences = range(lane.spec.sequences)
        for sequence in self._sequences:
            lane.open(sequence, Sampling())
        self._prompt_in = False

    def fastest_decodes(self, counts: Sequence[int], budget_s: float) -> dict[int, float]:
        """The fastest decode for each thread count; fewer decodes where they are slow."""
        samples: dict[int, list[float]] = {count: [] for count in counts}
        until = self._runtime.clock.now() + budget_s
        for _ in range(_ROUNDS):
            for count in counts:
                if not samples[count] or self._runtime.clock.now() < until:
                    samples[count] += self._decodes(count, _DECODES_A_ROUND, until)
        return {count: min(times) for count, times in samples.items()}

    def decode_median(self, threads: int) -> float:
        """Median of some decodes beside whatever runs in the other lane."""
        return statistics.median(self._decodes(threads, _BESIDE, self._runtime.clock.now() + _BESIDE_BUDGET_S))

    def _decodes(self, threads: int, most: int, until: float) -> list[float]:
        """Times of up to `most` decodes, at least one. One more before them pays for making the threads."""
        self.decode_s(threads)
        times = [self.decode_s(threads)]
        while len(times) < most and self._runtime.clock.now() < until:
            times.append(self.decode_s(threads))
        return times

    def decode_s(self, threads: int) -> float:
        """Time of one decode a sequence at a short context."""
        if not self._prompt_in:
            self._run((0,) * _PROMPT, 0, threads, self._sequences)
            self._prompt_in = True
        for sequence in self._sequences:
            self.lane.truncate(sequence, _PROMPT)
        return self._run((0,), _PROMPT, threads, self._sequences)

    def prefill_rates(self, counts: Sequence[int]) -> dict[int, float]:
        """Tokens per second of a chunk for each thread count."""
        short_s = self._prefill_s(_SHORT_CHUNK, counts[-1])
        chunk = _CHUNK if short_s * _CHUNK / _SHORT_CHUNK < _CHUNK_BUDGET_S else _SHORT_CHUNK
        return {count: chunk / self._prefill_s(chunk, count) for count in counts}

    def start_prefill(self, threads: int) -> None:
        """Begin a step long enough to last."""
        self.lane.truncate(0, 0)
        self._handle = self._submit((0,) * _CELLS, 0, threads)

    def stop(self) -> None:
        """End what `start_prefill` began."""
        assert self._handle is not None
        self.lane.interrupt(self._handle)
        self._result()

    def _prefill_s(self, chunk: int, threads: int) -> float:
        self.lane.truncate(0, _PROMPT)
        return self._run((0,) * chunk, _PROMPT, threads)

    def _run(self, tokens: tuple[int, ...], start: int, threads: int, sequences: Sequence[int] = (0,)) -> float:
        self._handle = self._submit(tokens, start, threads, sequences)
        result = self._result()
        return result.completed - result.submitted

    def _submit(self, tokens: tuple[int, ...], start: int, threads: int, sequences: Sequence[int] = (0,)) -> int:
        outputs = {start + len(tokens) - 1: Output.TOKEN}
        return self.lane.submit(Step(tuple(Segment(each, start, tokens, outputs) for each in sequences), threads))

    def _result(self) -> StepResult:
        """Wait for this lane's step. The other lane's background step may end meanwhile; that is of no interest."""
        while True:
            for result in self._runtime.wait(None):
                if result.lane == self.lane.spec.name:
                    return result
