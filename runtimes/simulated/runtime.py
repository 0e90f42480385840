"""The simulated runtime: a device on virtual time, without threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from random import Random
from typing import Any

from dlfp_edge.clock import Clock, SystemClock, VirtualClock
from dlfp_edge.errors import UsageError
from dlfp_edge.runtime import Capabilities, LaneSpec, StepResult, Tokenizer, refuse_lane

from .cost import FREE, Cost, CostModel, Slowdown
from .lane import SimulatedLane, World
from .mode import MODES, Mode
from .timeline import Timeline
from .tokens import ByteTokenizer

_DECODE_TOLERANCE = 1.55
_PREFILL_TOKENS = 512
_PROBED_SEQUENCES = 8


class SimulatedRuntime:
    """Implements `dlfp_edge.runtime.Runtime`.

    `mode` is a `Mode` or the name of one in `MODES`; `cost` the device's constants (default: the embedded model's on
    two cores, nothing at all in mode `null`). `cpus` are the ids of its cores. Steps whose number, counted from 0 over
    all lanes, is in `fail_steps` fail. `noise` is the standard deviation of the logarithm of a step's time,
    `end_probability` the chance that a token is the end token. A test that moves time itself gives its own `clock`.
    Equal arguments and calls give equal results. On a `SystemClock` steps take the time they would on the device.
    """

    def __init__(
        self,
        cost: Cost | None = None,
        mode: Mode | str = "lanes",
        *,
        cpus: Sequence[int] = (0, 1),
        fail_steps: Iterable[int] = (),
        slowdowns: Sequence[Slowdown] = (),
        noise: float = 0.0,
        end_probability: float = 0.0,
        seed: int = 0,
        clock: VirtualClock | SystemClock | None = None,
    ) -> None:
        self.clock: Clock = clock or VirtualClock()
        self.tokenizer: Tokenizer = ByteTokenizer()
        self._mode_name = mode if isinstance(mode, str) else "custom"
        self._mode = MODES[mode] if isinstance(mode, str) else mode
        self._cost: Cost = cost or (FREE if mode == "null" else CostModel())
        self._timeline = Timeline(self.clock, self._cost, slowdowns)
        self._world = World(
            timeline=self._timeline,
            cost=self._cost,
            mode=self._mode,
            random=Random(seed),
            cpus=tuple(cpus),
            fail_steps=frozenset(fail_steps),
            noise=noise,
            end_probability=end_probability,
        )
        self._lanes: list[SimulatedLane] = []
        self._woken = threading.Event()
        self.capabilities = _capabilities(self._cost, self._mode, len(cpus))

    def open_lane(self, spec: LaneSpec) -> SimulatedLane:
        """Open a lane. Raises UsageError when it asks for more than the capabilities."""
        mode = self._mode
        self._lanes = [lane for lane in self._lanes if lane in self._timeline.runners]
        refuse_lane(spec, [lane.spec.name for lane in self._lanes], mode.lanes)
        if spec.sequences > mode.sequences or spec.context > mode.context:
            raise UsageError(
                f"lane '{spec.name}' asks for {spec.sequences} sequences and {spec.context} cells; "
                f"the simulated runtime has {mode.sequences} and {mode.context}"
            )
        lane = SimulatedLane(spec, self._world)
        self._lanes.append(lane)
        self._timeline.runners.append(lane)
        return lane

    def wait(self, until: float | None) -> list[StepResult]:
        """Advance the clock to the first result, or to `until`.

        With nothing in flight and no limit only another thread's `wake` can end the wait, so it blocks until then.
        """
        if not isinstance(self.clock, VirtualClock):
            return self._wait_really(until)
        if until is None and self._timeline.idle:
            self._woken.wait()
        if self._woken.is_set():
            self._woken.clear()
            return self._timeline.advance(self.clock.now())
        return self._timeline.advance(until)

    def _wait_really(self, until: float | None) -> list[StepResult]:
        while True:
            now = self.clock.now()
            results = self._timeline.advance(now)
            if results or self._woken.is_set() or (until is not None and now >= until):
                self._woken.clear()
                return results
            event = self._timeline.next_event()
            times = [when for when in (until, event) if when is not None]
            self._woken.wait(max(0.0, min(times) - now) if times else None)

    def wake(self) -> None:
        self._woken.set()

    def describe(self) -> dict[str, Any]:
        return {
            "runtime": "simulated",
            "mode": self._mode_name,
            "cost": asdict(self._cost),
            "cpus": list(self._world.cpus),
            "noise": self._world.noise,
            "end_probability": self._world.end_probability,
        }

    def close(self) -> None:
        for lane in self._lanes:
            lane.shut()
        self._lanes.clear()


def _capabilities(cost: Cost, mode: Mode, cores: int) -> Capabilities:
    decode = {threads: cost.pass_s(1, threads) for threads in range(1, cores + 1)}
    several = {
        threads: {
            number: cost.pass_s(number, threads) if mode.batched else number * decode[threads]
            for number in range(2, _PROBED_SEQUENCES + 1)
        }
        for threads in decode
    }
    fastest = min(decode, key=decode.__getitem__)
    best_s = decode[fastest]
    decode_threads = min(threads for threads, seconds in decode.items() if seconds <= _DECODE_TOLERANCE * best_s)
    prefill_s = cost.pass_s(_PREFILL_TOKENS, cores)
    return Capabilities(
        lanes=mode.lanes,
        batched=mode.batched,
        depth=mode.depth,
        sequences=mode.sequences,
        context=mode.context,
        sequence_context=mode.sequence_context,
        largest_step=mode.largest_step,
        ubatch=mode.ubatch,
        tile=cost.tile,
        min_chunk=mode.min_chunk,
        interruptible=mode.interruptible,
        fork=mode.fork,
        save=mode.save,
        rollback=mode.rollback,
        pooling=mode.pooling,
        outputs=mode.largest_step,
        schedule_invariant=True,
        decode_threads=decode_threads,
        prefill_threads=cores,
        decode_s_by_threads=decode,
        decodes_s=several,
        decode_s_per_cell={1: cost.pass_s(1, fastest, 1) - cost.pass_s(1, fastest)},
        stretch_beside={},
        threads_invariant=True,
        prefill_tokens_per_s=_PREFILL_TOKENS / prefill_s if prefill_s else None,
        priority="simulated" if mode.lanes > 1 else "none",
        priority_effective=mode.lanes > 1,
    )
