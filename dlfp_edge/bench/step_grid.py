"""Steps of decodes and a piece of a prompt, timed on a lane: what a latency model is fitted to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from statistics import median

from dlfp_edge.bench.report import Progress
from dlfp_edge.bench.steps import decode, open_lane, prefill, random_tokens, run_step, service_s
from dlfp_edge.control.edge import quantise
from dlfp_edge.errors import UsageError
from dlfp_edge.runtime import Capabilities, Lane, Rollback, Runtime, Segment, Step

DECODES = (1, 2, 4)
CONTEXTS = (64, 128, 256, 512, 1024, 2048)
CHUNKS = (0, 8, 16, 32, 64, 128, 256, 512)
STARTS = (0, 256, 1024)

_SETS, _EVEN_TOKENS = 4, 256
"""How many sets of decodes a chunk is measured beside; above so many tokens of all of them together, fewer."""

_PIECE = 512
"""Tokens of the steps in which contexts are filled."""

_FEWEST = 20
"""Points below which a fit of six constants would say little."""


@dataclass(slots=True)
class Point:
    """A step: one decode at each of these `contexts` beside `chunk` tokens of a prompt that has `start` cells already.

    `cells` are the KV cells that its decodes read, `times_s` the gaps it made: its service time and sampling.
    """

    contexts: tuple[int, ...]
    chunk: int
    start: int
    cells: int = 0
    times_s: list[float] = field(default_factory=list)

    @property
    def decoders(self) -> int:
        """Decodes of the step."""
        return len(self.contexts)

    @property
    def median_s(self) -> float:
        """The median time in seconds."""
        return median(self.times_s)


def timed_points(runtime: Runtime, largest: int, seconds: float, progress: Progress) -> list[Point]:
    """Every point with a chunk of at most `largest` tokens, and again for `seconds` in all, in random order.

    The time is the runtime's, and begins when the contexts are filled. Raises UsageError where the runtime cannot take
    such steps.
    """
    caps = runtime.capabilities
    if caps.rollback is not Rollback.ANY:
        raise UsageError("this runtime cannot drop the KV cells of a step, as measuring it again needs")
    chunks = [chunk for chunk in CHUNKS if chunk <= largest]
    contexts = [context for context in CONTEXTS if context < caps.sequence_context]
    starts = [start for start in STARTS if start + max(chunks) <= caps.sequence_context]
    random = Random(0)
    points = list(grid(caps, contexts, chunks, starts, random))
    if len(points) < _FEWEST:
        raise UsageError(f"only {len(points)} steps of the grid are possible here: too few to fit a latency model to")
    lane = open_lane(runtime, len(contexts) + len(starts), sum(contexts) + sum(starts) + max(chunks) + max(DECODES))
    try:
        steps = _Steps(runtime, lane, contexts, starts)
        progress(0, "filling contexts")
        steps.fill()
        steps.repeat(points, seconds, random, progress)
    finally:
        lane.shut()
    return points


def grid(
    caps: Capabilities, contexts: Sequence[int], chunks: Sequence[int], starts: Sequence[int], random: Random
) -> Iterator[Point]:
    """The points: decodes alone, and each chunk at each start beside a few sets of decodes, all sets taking turns.

    Chunks are what laws plan there, with the decodes a multiple of the kernel tile where `quantise` makes it one.
    """
    sets = [tuple(contexts[first : first + count]) for count in DECODES for first in range(len(contexts) - count + 1)]
    random.shuffle(sets)
    for beside in sets:
        yield Point(beside, 0, 0)
    turns = cycle(sets)
    for chunk in filter(None, chunks):
        for start in starts:
            for _ in range(max(1, min(_SETS, _EVEN_TOKENS // chunk))):
                beside = next(turns)
                planned = quantise(chunk, len(beside), caps.tile)
                if planned >= caps.min_chunk and planned + len(beside) <= caps.largest_step:
                    yield Point(beside, planned, start)


class _Steps:
    """A lane with a sequence for each context that decodes, and one for each start of a prompt."""

    def __init__(self, runtime: Runtime, lane: Lane, contexts: Sequence[int], starts: Sequence[int]) -> None:
        self._runtime, self._lane = runtime, lane
        # As many threads as the engine gives a step with prefill, also for the decodes that are alone in one.
        self._threads = runtime.capabilities.prefill_threads
        self._readers = {context: sequence for sequence, context in enumerate(contexts)}
        self._prompts = {start: sequence for sequence, start in enumerate(starts, len(contexts))}
        self._tokens = random_tokens(runtime, max(CHUNKS))

    def fill(self) -> None:
        """Give every sequence its cells."""
        largest = min(_PIECE, self._runtime.capabilities.largest_step)
        for length, sequence in (*self._readers.items(), *self._prompts.items()):
            tokens = random_tokens(self._runtime, length, seed=1 + sequence)
            for start in range(0, length, largest):
                self._run([prefill(sequence, start, tokens[start : start + largest])])

    def repeat(self, points: Sequence[Point], seconds: float, random: Random, progress: Progress) -> None:
        """Time every point, however long that takes, and then again in a new order until the time is up."""
        began, order, done = self._runtime.clock.now(), list(points), 0
        while True:
            random.shuffle(order)
            for point in order:
                spent = (self._runtime.clock.now() - began) / seconds
                if done >= len(points) and spent >= 1:
                    return
                if done % 50 == 0:
                    progress(min(spent, 1.0), f"{done} steps")
                self._time(point)
                done += 1

    def _time(self, point: Point) -> None:
        lane, prompt = self._lane, self._prompts[point.start]
        segments = [decode(self._readers[context], context, self._tokens[0]) for context in point.contexts]
        if point.chunk:
            segments.append(prefill(prompt, point.start, self._tokens[: point.chunk]))
        point.cells = lane.kv_used() if lane.reads_all else sum(point.contexts)
        point.times_s.append(self._run(segments))
        for context in point.contexts:
            lane.truncate(self._readers[context], context)
        lane.truncate(prompt, point.start)

    def _run(self, segments: Sequence[Segment]) -> float:
        result = run_step(self._runtime, self._lane, Step(tuple(segments), self._threads))
        return service_s(result) + result.sampling_s
