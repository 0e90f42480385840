"""What the scheduler itself costs a step, on a runtime whose steps take no time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from dlfp_edge.bench.jobs import background, foreground
from dlfp_edge.bench.loading import load_runtime
from dlfp_edge.bench.report import Report, quantiles_ms
from dlfp_edge.engine import Engine
from dlfp_edge.settings import Placement, Settings

_PROMPT = 16
_CELLS_AHEAD = 64


def overhead(sequences: Iterable[int], tokens: int, step_s: float | None) -> Report:
    """Time per step of planning and of the whole loop, by streams that decode; `step_s`: a real step to compare."""
    return Report(
        "overhead",
        "The scheduler's own time per step (simulated runtime, steps take no time)",
        ("streams", "steps", "plan p50 us", "plan p99 us", "loop us", "steps/s", "share of a step %"),
        [_row(count, tokens, step_s) for count in sequences],
        notes=[
            "loop: planning, submission, observation and delivery together, mean over all steps",
            "share: loop time against a real decode step"
            + ("" if step_s is None else f" of {step_s * 1000:.1f} ms with one stream"),
        ],
        facts={"simulated": True, "tokens": tokens, "compared_step_s": step_s},
    )


def _row(streams: int, tokens: int, step_s: float | None) -> tuple[Any, ...]:
    runtime = load_runtime("simulated", options={"mode": "null"})
    cells = (streams + 1) * (_PROMPT + tokens + _CELLS_AHEAD)
    settings = Settings(placement=Placement.SHARED, foreground_sequences=streams, background_sequences=1, context=cells)
    engine = Engine(runtime, settings)
    try:
        tasks = [engine.submit(foreground(runtime, _PROMPT, tokens, seed)) for seed in range(streams)]
        tasks.append(engine.submit(background(runtime, _PROMPT)))
        began = time.perf_counter()
        engine.run_until(lambda: all(task.record.finished is not None for task in tasks))
        elapsed_s = time.perf_counter() - began
    finally:
        engine.close()
        runtime.close()
    steps = engine.counters.steps
    plan_p50_ms, plan_p99_ms, _ = quantiles_ms(list(engine.counters.plan_s))
    share = None if step_s is None else 100 * elapsed_s / steps / step_s
    loop_us = 1e6 * elapsed_s / steps
    return (streams, steps, plan_p50_ms * 1000, plan_p99_ms * 1000, loop_us, steps / elapsed_s, share)
