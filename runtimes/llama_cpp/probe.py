"""What this machine can do with this model, measured through lanes at load in about five seconds.

Decode wants few threads and prefill many. The decode threads are the fewest whose step is within 1.55 times that of the
fastest count, since each thread saved goes to the background. Counts are tried in turns, and the fastest step of each
counts: what else runs on the machine can only make a step slower, and a probe is too short to average that out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import psutil

from dlfp_edge.runtime import (
    Lane,
    LaneSpec,
    Output,
    Priority,
    Runtime,
    Sampling,
    Segment,
    Step,
    StepResult,
    Transfer,
)

CLOSE_ENOUGH = 1.55
"""A little under the slowdown that lanes aim at (1.75), so that what the background adds still fits. On two cores one
thread took 1.3 to 1.45 times as long as two, and with two the background fell from 60% of its unprotected rate to 17%:
a bound of 1.4 lay in the noise between these."""
_CELLS = 1024
_SEQUENCE_CELLS = 320
_PROMPT = 16
_ROUNDS, _DECODES_A_ROUND, _DECODE_BUDGET_S = 3, 5, 1.2
_SPOILT = 1.5
"""Times what fewer threads take, a count had its CPUs taken by something else: it is tried again. One of two CPUs taken
during the probe made a decode on both thirty times as long as on one."""
_SEQUENCES = 8
_SEVERAL = (4, 8, 2, 3, 6, 5, 7)
"""Numbers of sequences in the order they are tried, while there is time. Kernels take rows in fours, so that four can
cost no more than three and eight less than seven."""
_FEW = 4
_SEVERAL_ROUNDS, _SEVERAL_BUDGET_S = 2, 1.0
_CHUNK, _SHORT_CHUNK, _CHUNK_BUDGET_S = 256, 64, 0.5
_FILLED, _FILLED_BUDGET_S = (1, 4, 8), 0.8
_BESIDE, _BESIDE_BUDGET_S = 12, 0.6
_PATIENCE_S = 5.0
"""After this long, on a slow or busy machine, the priority is not probed any more."""

OpenLane = Callable[[LaneSpec], Lane]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What was found, in seconds and threads. `decode_s_by_threads` are the fastest seen, `decodes_s` those of several
    sequences by threads and number. `decode_s_per_cell` is what a KV cell in use adds on the fastest count, by number.

    `beside_lowest_s` is a decode's time beside a background step of lowest priority on all CPUs, `beside_disjoint_s`
    beside one that keeps to other CPUs; both None where there is one CPU only or time was short. `stretch_beside` says
    for one and for four sequences how many times as long decodes take beside a step of lowest priority.
    """

    decode_s_by_threads: dict[int, float]
    decodes_s: dict[int, dict[int, float]]
    prefill_rate_by_threads: dict[int, float]
    beside_lowest_s: float | None = None
    beside_disjoint_s: float | None = None
    stretch_beside: dict[int, dict[int, float]] = field(default_factory=dict)
    decode_s_per_cell: dict[int, float] = field(default_factory=dict)

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
    sequences = min(_SEQUENCES, runtime.capabilities.sequences)
    spec = LaneSpec("probe", Priority.NORMAL, sequences, sequences * _SEQUENCE_CELLS, threads_invariant=True)
    results: dict[str, StepResult] = {}
    front = _Bench(runtime, open_lane(spec), results)
    try:
        decode = front.fastest_decodes(counts)
        fastest = min(decode, key=decode.__getitem__)
        several = front.fastest_of_several(counts, fastest)
        prefill = front.prefill_rates(prefill_counts(most_threads, physical_cores()))
        found = ProbeResult(decode, several, prefill, decode_s_per_cell=front.growth(fastest))
        if most_threads < 2 or len(cpus) < 2 or runtime.clock.now() - began > _PATIENCE_S:
            return found
        back = _Bench(runtime, open_lane(LaneSpec("probe beside", Priority.LOWEST, 1, 2 * _CELLS)), results)
        try:
            return _beside(front, back, found, cpus)
        finally:
            back.lane.shut()
    finally:
        front.lane.shut()


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


def _beside(front: _Bench, back: _Bench, found: ProbeResult, cpus: Sequence[int]) -> ProbeResult:
    """Adds what decodes take beside a lowest-priority step on all CPUs, and beside one on other CPUs than their own."""
    own = min(found.decode_threads, len(cpus) - 1)
    back.start_prefill(found.prefill_threads)
    lowest_s = front.decode_median(own, 1)
    stretch = {1: lowest_s / front.alone_s(own, 1)} if own in found.decode_s_by_threads else {}
    if _FEW in found.decodes_s.get(own, {}):
        stretch[_FEW] = front.decode_median(own, _FEW) / front.alone_s(own, _FEW)
    back.stop()
    front.lane.pin(cpus[:own])
    back.lane.pin(cpus[own:])
    back.start_prefill(len(cpus) - own)
    disjoint_s = front.decode_median(own, 1)
    back.stop()
    return replace(found, beside_lowest_s=lowest_s, beside_disjoint_s=disjoint_s, stretch_beside={own: stretch})


class _Bench:
    """Steps of one lane, timed: decodes on its first sequences, prefill on the very first.

    `results` are those of all benches that nobody has asked for yet, by lane.
    """

    def __init__(self, runtime: Runtime, lane: Lane, results: dict[str, StepResult]) -> None:
        self.lane = lane
        self._runtime = runtime
        self._results = results
        self._handle: int | None = None
        self._alone: dict[tuple[int, int], list[float]] = {}
        for sequence in range(lane.spec.sequences):
            lane.open(sequence, Sampling())
        self._held = 0  # cells that each sequence begins a decode with
        self._chunk = 0

    def fastest_decodes(self, counts: Sequence[int]) -> dict[int, float]:
        """The fastest decode of one sequence for each thread count; fewer decodes where they are slow."""
        until = self._runtime.clock.now() + _DECODE_BUDGET_S
        for _ in range(_ROUNDS):
            for count in counts:
                if (count, 1) not in self._alone or self._runtime.clock.now() < until:
                    self._alone.setdefault((count, 1), []).extend(self._decodes(count, 1, _DECODES_A_ROUND, until))
        for count in counts:
            for _ in range(_ROUNDS):
                best_s = min(min(self._alone[fewer, 1]) for fewer in counts if fewer <= count)
                if min(self._alone[count, 1]) > _SPOILT * best_s:
                    self._alone[count, 1].extend(self._decodes(count, 1, _DECODES_A_ROUND, self._runtime.clock.now()))
        return {count: min(self._alone[count, 1]) for count in counts}

    def fastest_of_several(self, counts: Sequence[int], fastest: int) -> dict[int, dict[int, float]]:
        """The fastest decodes of several sequences, while there is time; on all counts for four."""
        numbers = [number for number in _SEVERAL if number <= self.lane.spec.sequences]
        until = self._runtime.clock.now() + _SEVERAL_BUDGET_S
        for _ in range(_SEVERAL_ROUNDS):
            for number in numbers:
                for count in counts if number == _FEW else [fastest]:
                    if self._runtime.clock.now() < until:
                        times = self._decodes(count, number, 1, until)
                        self._alone.setdefault((count, number), []).extend(times)
        found: dict[int, dict[int, float]] = {count: {} for count in counts}
        for (count, number), times in self._alone.items():
            if number > 1:
                found[count][number] = min(times)
        return found

    def alone_s(self, threads: int, sequences: int) -> float:
        """The median of the decodes seen so far with nothing beside them."""
        return statistics.median(self._alone[threads, sequences])

    def decode_median(self, threads: int, sequences: int) -> float:
        """Median of some decodes beside whatever runs in the other lane."""
        until = self._runtime.clock.now() + _BESIDE_BUDGET_S
        return statistics.median(self._decodes(threads, sequences, _BESIDE, until))

    def _decodes(self, threads: int, sequences: int, most: int, until: float) -> list[float]:
        """Times of up to `most` steps, at least one. One more before them pays for making the threads."""
        self._decode_s(threads, sequences)
        times = [self._decode_s(threads, sequences)]
        while len(times) < most and self._runtime.clock.now() < until:
            times.append(self._decode_s(threads, sequences))
        return times

    def _decode_s(self, threads: int, sequences: int) -> float:
        """Time of one decode on each of the first sequences."""
        if not self._held:
            self._run((0,) * _PROMPT, 0, threads, self.lane.spec.sequences)
            self._held = _PROMPT
        for sequence in range(sequences):
            self.lane.truncate(sequence, self._held)
        return self._run((0,), self._held, threads, sequences)

    def prefill_rates(self, counts: Sequence[int]) -> dict[int, float]:
        """Tokens per second of a chunk for each thread count."""
        short_s = self._prefill_s(_SHORT_CHUNK, counts[-1])
        chunk = _CHUNK if short_s * _CHUNK / _SHORT_CHUNK < _CHUNK_BUDGET_S else _SHORT_CHUNK
        self._chunk = chunk
        return {count: chunk / self._prefill_s(chunk, count) for count in counts}

    def growth(self, threads: int) -> dict[int, float]:
        """Seconds that every KV cell in use adds to a decode, by number of sequences, where a step reads all cells.

        The chunk that the first sequence holds after `prefill_rates` is copied to all others for the time.
        """
        if not (self.lane.reads_all and self._runtime.capabilities.save):
            return {}
        length = _PROMPT + self._chunk
        content = self._submitted(Step((), 1, Transfer(0, 0, length))).content
        if content is None:
            return {}
        for sequence in range(1, self.lane.spec.sequences):
            self.lane.truncate(sequence, 0)
            self._submitted(Step((), 1, Transfer(sequence, 0, length, content)))
        self._held, found = length, {}
        until = self._runtime.clock.now() + _FILLED_BUDGET_S
        cells = self._chunk * self.lane.spec.sequences
        for number in _FILLED:
            if (threads, number) in self._alone and self._runtime.clock.now() < until:
                filled_s = min(self._decodes(threads, number, _DECODES_A_ROUND, until))
                found[number] = max(0.0, filled_s - min(self._alone[threads, number])) / cells
        self._held = _PROMPT
        for sequence in range(self.lane.spec.sequences):
            self.lane.truncate(sequence, _PROMPT)
        return found

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

    def _run(self, tokens: tuple[int, ...], start: int, threads: int, sequences: int = 1) -> float:
        self._handle = self._submit(tokens, start, threads, sequences)
        result = self._result()
        return result.completed - result.submitted

    def _submitted(self, step: Step) -> StepResult:
        self.lane.submit(step)
        return self._result()

    def _submit(self, tokens: tuple[int, ...], start: int, threads: int, sequences: int = 1) -> int:
        outputs = {start + len(tokens) - 1: Output.TOKEN}
        return self.lane.submit(
            Step(tuple(Segment(each, start, tokens, outputs) for each in range(sequences)), threads)
        )

    def _result(self) -> StepResult:
        """Wait for this lane's step. The other lane's may end meanwhile; its bench asks for it later."""
        name = self.lane.spec.name
        while name not in self._results:
            self._results.update({result.lane: result for result in self._runtime.wait(None)})
        return self._results.pop(name)
