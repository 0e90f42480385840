"""vLLM's own scheduler on a simulated GPU, reduced to its arithmetic: fast enough to fit constants with.

Continuous batching as the engine does it in one class and without a cap, but without an engine: no tokens, no KV cells,
no controller. Nothing else can be simulated here, so nothing else can be fitted to.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from .devices import GpuDevice


@dataclass(slots=True)
class Replayed:
    """One request: when it arrived and when each token was there, in seconds."""

    arrived: float
    times: list[float] = field(default_factory=list)
    prompt: int = 0
    outputs: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens of every prompt and of every answer."""

    prompt: int
    answer: int


def replay(device: GpuDevice, arrivals: Sequence[float], shape: Shape, random: Random | None = None) -> list[Replayed]:
    """The requests, as they would be served; `random` draws the device's noise, without it there is none."""
    return _Replay(device, arrivals, shape, random).run()


class _Replay:
    def __init__(self, device: GpuDevice, arrivals: Sequence[float], shape: Shape, random: Random | None) -> None:
        self._device, self._shape, self._random = device, shape, random
        self._requests = [Replayed(arrived) for arrived in arrivals]
        self._waiting = deque(self._requests)
        self._running: list[Replayed] = []
        self._flights: deque[tuple[float, list[Replayed]]] = deque()
        self._free_at = 0.0
        # Where steps are queued the scheduler's time passes beside the next one, else it is part of every gap.
        self._token_s = device.cost.host_s if device.mode.depth == 1 else 0.0

    def run(self) -> list[Replayed]:
        """Serve all requests."""
        now = 0.0
        while self._waiting or self._running or self._flights:
            while self._waiting and self._waiting[0].arrived <= now:
                self._running.append(self._waiting.popleft())
            while len(self._flights) < self._device.mode.depth and self._start(now):
                pass
            now = max(now, self._next(now))
        return self._requests

    def _next(self, now: float) -> float:
        """When something happens next; the step that ends then is accounted for."""
        ends = self._flights[0][0] + self._device.cost.host_s if self._flights else math.inf
        if self._waiting and len(self._flights) < self._device.mode.depth and self._waiting[0].arrived < ends:
            return self._waiting[0].arrived
        if self._flights:
            completed, outputs = self._flights.popleft()
            for request in outputs:
                request.times.append(completed + self._token_s)
        return ends if ends < math.inf else now

    def _start(self, now: float) -> bool:
        """Submit the next step, if there is anything to run: all decodes, then prompts in order up to the budget."""
        shape, room = self._shape, self._device.mode.largest_step
        segments: list[tuple[int, int]] = []
        outputs: list[Replayed] = []
        for request in self._running:
            if request.prompt == shape.prompt:
                segments.append((shape.prompt + request.outputs - 1, 1))
                outputs.append(request)
        room -= len(segments)
        for request in self._running:
            count = min(room, shape.prompt - request.prompt)
            if count:
                segments.append((request.prompt, count))
                request.prompt += count
                room -= count
                if request.prompt == shape.prompt:
                    outputs.append(request)
        if not segments:
            return False
        self._submit(now, segments, outputs)
        return True

    def _submit(self, now: float, segments: list[tuple[int, int]], outputs: list[Replayed]) -> None:
        for request in outputs:
            request.outputs += 1
        self._running = [request for request in self._running if request.outputs < self._shape.answer]
        duration_s = self._device.cost.step_time_s(segments, len(outputs))
        if self._random is not None:
            duration_s *= self._random.lognormvariate(0.0, self._device.noise)
        self._free_at = max(now, self._free_at) + duration_s
        self._flights.append((self._free_at, outputs))
