"""How long a simulated step takes: affine in its tokens, with context, kernel tiles and threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, dataclass
from typing import Any, ClassVar, Protocol

from dlfp_edge.runtime import Segment


@dataclass(frozen=True, slots=True)
class Work:
    """A step's work in seconds on one core: a serial part and one that threads divide (Amdahl)."""

    serial_s: float
    parallel_s: float

    def seconds(self, cores: float) -> float:
        """Duration on `cores` of them: more than one divide the parallel part, less than one stretch everything."""
        if cores < 1.0:
            return (self.serial_s + self.parallel_s) / cores
        return self.serial_s + self.parallel_s / cores


class Cost(Protocol):
    """What the runtime asks of a device's costs; the constants are those of `CostModel`."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def tile(self) -> int: ...

    @property
    def sampling_s(self) -> float: ...

    @property
    def host_s(self) -> float: ...

    @property
    def bandwidth(self) -> float: ...

    @property
    def trickle(self) -> float: ...

    @property
    def interrupt_s(self) -> float: ...

    @property
    def copy_s(self) -> float: ...

    def work(self, segments: Sequence[Segment]) -> Work:
        """The work of one pass over all of `segments`."""
        ...

    def pass_s(self, tokens: int, cores: float, start: int = 0) -> float:
        """Duration of one pass over `tokens` of one sequence that holds `start` cells, with nothing beside it."""
        ...


@dataclass(frozen=True, slots=True)
class CostModel:
    """Constants of a device and model, all in seconds on one core.

    A pass costs `base_s`, plus `token_s` a token, plus `context_s` a token and cell of its mean context. Of the base,
    `base_parallel` is divided by threads, of the rest `token_parallel`. A pass whose total is a multiple of `tile`
    takes `tile_factor` of that time. `sampling_s` is spent after a step for each output. Results are with the scheduler
    `host_s` after the step has ended, or later; where steps are queued the device goes on meanwhile.

    With lanes, another lane that keeps every core busy makes this one slower by `bandwidth`, and a lane left without a
    core by one of higher priority still gets `trickle` of one. `interrupt_s` is the time an interruption takes,
    `copy_s` that of copying one KV cell to host memory or back.

    The defaults are a 270M model on two x86 cores: a decode of 14 ms on two threads and 18 ms on one, and 2.1 ms for
    each token of prefill beside it.
    """

    base_s: float = 0.0140
    token_s: float = 0.0040
    context_s: float = 2e-7
    base_parallel: float = 0.30
    token_parallel: float = 0.95
    tile: int = 16
    tile_factor: float = 0.85
    sampling_s: float = 0.0
    host_s: float = 0.0
    bandwidth: float = 0.2
    trickle: float = 0.1
    interrupt_s: float = 0.002
    copy_s: float = 4e-6

    def work(self, segments: Sequence[Segment]) -> Work:
        """The work of one pass over all of `segments`."""
        tokens = 0
        context = 0.0
        for segment in segments:
            count = len(segment.tokens)
            tokens += count
            context += count * (segment.start + (count + 1) / 2)
        variable_s = self.token_s * tokens + self.context_s * context
        parallel_s = self.base_s * self.base_parallel + variable_s * self.token_parallel
        serial_s = self.base_s + variable_s - parallel_s
        if self.tile > 1 and tokens % self.tile == 0:
            return Work(serial_s * self.tile_factor, parallel_s * self.tile_factor)
        return Work(serial_s, parallel_s)

    def pass_s(self, tokens: int, cores: float, start: int = 0) -> float:
        """Duration of one pass over `tokens` of one sequence that holds `start` cells, with nothing beside it."""
        return self.work([Segment(0, start, (0,) * tokens)]).seconds(cores)


FREE = CostModel(base_s=0.0, token_s=0.0, context_s=0.0, tile=1, interrupt_s=0.0, copy_s=0.0)
"""A device on which nothing takes time."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """From `from_s` to `to_s` on the clock everything takes `factor` as long (heat, a foreign load)."""

    from_s: float
    to_s: float
    factor: float
