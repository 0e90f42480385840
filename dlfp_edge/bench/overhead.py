"""What the scheduler itself costs a step, on a runtime whose steps take no time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from dlfp_edge.bench.jobs import foreground
from dlfp_edge.bench.loading import load_runtime
from dlfp_edge.bench.report import Progress, Report, quantiles_ms
from dlfp_edge.bench.steps import decode, open_lane, prefill, random_tokens, run_step, service_s
from dlfp_edge.engine import Engine
from dlfp_edge.runtime import Lane, Runtime, Step
from dlfp_edge.settings import Placement, Settings

_PROMPT = 16
_CELLS_AHEAD = 64
_REPEATS = 9


def overhead(streams: Iterable[int], tokens: int, step_s: Mapping[int, float]) -> Report:
    """Time per step of planning and of the whole loop; `step_s` is a real decode step by streams, to compare with."""
    return Report(
        "overhead",
        "The scheduler's own time per step (simulated runtime, steps take no time)",
        ("streams", "steps", "plan p50 us", "plan p99 us", "loop us", "steps/s", "real step ms", "share %"),
        [_row(count, tokens, step_s.get(count)) for count in streams],
        notes=[
            "loop: planning, submission, observation and delivery together, mean over all steps",
            "share: loop time of a real decode step's",
        ],
        facts={"simulated": True, "tokens": tokens},
    )


def decode_steps_s(runtime: Runtime, streams: Iterable[int], progress: Progress) -> dict[int, float]:
    """The median time of a real decode step of so many streams at a short context."""
    counts = [count for count in streams if count <= runtime.capabilities.sequences]
    if not counts:
        return {}
    lane = open_lane(runtime, max(counts), max(counts) * 2 * (_PROMPT + 1))
    threads = runtime.capabilities.decode_threads
    prompt = random_tokens(runtime, _PROMPT)
    try:
        for sequence in range(max(counts)):
            run_step(runtime, lane, Step((prefill(sequence, 0, prompt),), threads))
        times: dict[int, float] = {}
        for count in counts:
            progress(len(times) / len(counts), f"real steps of {count} streams")
            times[count] = _decode_s(runtime, lane, count, threads)
        return times
    finally:
        lane.shut()


def _decode_s(runtime: Runtime, lane: Lane, streams: int, threads: int) -> float:
    step = Step(tuple(decode(sequence, _PROMPT, 300) for sequence in range(streams)), threads)
    times = []
    for _ in range(_REPEATS):
        times.append(service_s(run_step(runtime, lane, step)))
        for sequence in range(streams):
            lane.truncate(sequence, _PROMPT)
    return median(times)


def _row(streams: int, tokens: int, step_s: float | None) -> tuple[Any, ...]:
    runtime = load_runtime("simulated", options={"mode": "null"})
    cells = 2 * streams * (_PROMPT + tokens + _CELLS_AHEAD)
    settings = Settings(
        placement=Placement.LANES,
        foreground_sequences=streams,
        background_sequences=1,
        context=cells,
        foreground_share=0.5,
    )
    engine = Engine(runtime, settings)
    try:
        tasks = [engine.submit(foreground(runtime, _PROMPT, tokens, seed)) for seed in range(streams)]
        began = time.perf_counter()
        engine.run_until(lambda: all(task.record.finished is not None for task in tasks))
        elapsed_s = time.perf_counter() - began
    finally:
        engine.close()
        runtime.close()
    steps = engine.counters.steps
    plan_p50_ms, plan_p99_ms, _ = quantiles_ms(list(engine.counters.plan_s))
    loop_s = elapsed_s / steps
    real = (None, None) if step_s is None else (step_s * 1000, 100 * loop_s / step_s)
    return (streams, steps, plan_p50_ms * 1000, plan_p99_ms * 1000, loop_s * 1e6, 1 / loop_s, *real)
