"""What the background costs the interpreter's lock while other programs want every core.

The background lane's driver runs at the lowest priority. Were it ever to hold the interpreter's lock when the system
takes its core away, every other thread would wait for it: priority inversion. A probe thread at normal priority, which
sleeps and wakes as the foreground's driver does, would see that as late wake-ups.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable

from dlfp_edge.bench.busy import busy_cores
from dlfp_edge.bench.report import QUANTILE_COLUMNS, Progress, Report, measured_on, quantile_row
from dlfp_edge.bench.steps import open_lane, prefill, random_tokens, result_of
from dlfp_edge.runtime import Lane, Priority, Runtime, Step

_NAP_S = 0.002
_STEP_TOKENS = 512
_LONG_STEP_TOKENS = 2000
_SETTLE_S = 1.0
_TURNS = 5


def gil(runtime: Runtime, cores: Iterable[int], seconds: float, interruptions: int, progress: Progress) -> Report:
    """Late wake-ups with and without background beside a busy loop on every core, and the time to interrupt a step."""
    lane = open_lane(runtime, 1, _LONG_STEP_TOKENS + 1, Priority.LOWEST)
    try:
        with busy_cores(cores, at_most_s=3 * seconds + 2 * interruptions + 60) as busy:
            time.sleep(_SETTLE_S)
            alone, beside, steps = _alternating(runtime, lane, seconds, progress)
            progress(0.7, f"{interruptions} interruptions")
            latencies = _interruptions_s(runtime, lane, interruptions)
    finally:
        lane.shut()
    rows = [
        quantile_row("late wake-up without background", alone),
        quantile_row("late wake-up with background", beside),
        quantile_row("interrupt to step's end", latencies),
    ]
    return Report(
        "gil",
        f"Waiting for the interpreter's lock beside {busy} busy loops",
        QUANTILE_COLUMNS,
        rows,
        notes=[
            f"late: past a nap of {_NAP_S * 1000:.0f} ms, the system's delay and the lock's together",
            f"background steps completed meanwhile: {steps}",
        ],
        facts={**measured_on(runtime), "seconds": seconds, "background_steps": steps},
    )


def late_wakeups_s(seconds: float) -> list[float]:
    """How late a thread wakes from short naps."""
    late: list[float] = []
    end = time.perf_counter() + seconds
    while (asleep := time.perf_counter()) < end:
        time.sleep(_NAP_S)
        late.append(time.perf_counter() - asleep - _NAP_S)
    return late


def _alternating(
    runtime: Runtime, lane: Lane, seconds: float, progress: Progress
) -> tuple[list[float], list[float], int]:
    """Probes without and with background in turns, so that the machine's moods fall on both."""
    alone: list[float] = []
    beside: list[float] = []
    steps = 0
    for turn in range(_TURNS):
        progress(0.7 * turn / _TURNS, "wake-ups without and with background")
        alone += late_wakeups_s(seconds / _TURNS)
        late, completed = _beside_background(runtime, lane, seconds / _TURNS)
        beside += late
        steps += completed
    return alone, beside, steps


def _beside_background(runtime: Runtime, lane: Lane, seconds: float) -> tuple[list[float], int]:
    """Probe in a thread of its own while this one keeps the lane running, as the engine does."""
    late: list[float] = []
    probe = threading.Thread(target=lambda: late.extend(late_wakeups_s(seconds)))
    step = Step((prefill(0, 0, random_tokens(runtime, _STEP_TOKENS)),), runtime.capabilities.prefill_threads)
    probe.start()
    steps, handle, under_way = 0, lane.submit(step), True
    while under_way:
        ended = [result for result in runtime.wait(runtime.clock.now() + 0.05) if result.handle == handle]
        if ended:
            lane.truncate(0, 0)
            steps += not ended[0].interrupted
            under_way = probe.is_alive()
            handle = lane.submit(step) if under_way else handle
        elif not probe.is_alive():
            lane.interrupt(handle)
    probe.join()
    return late, steps


def _interruptions_s(runtime: Runtime, lane: Lane, count: int) -> list[float]:
    """From the request to the end of a long step, requested at random moments."""
    generator = random.Random(1)
    step = Step((prefill(0, 0, random_tokens(runtime, _LONG_STEP_TOKENS)),), runtime.capabilities.prefill_threads)
    latencies: list[float] = []
    for _ in range(count):
        handle = lane.submit(step)
        time.sleep(generator.uniform(0.05, 0.5))
        asked = time.perf_counter()
        lane.interrupt(handle)
        result = result_of(runtime, handle)
        if result.interrupted:
            latencies.append(time.perf_counter() - asked)
        lane.truncate(0, 0)
    return latencies
