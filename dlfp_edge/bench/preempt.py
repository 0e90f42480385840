"""How quickly a foreground arrival takes over from background work in shared steps, and what that wastes."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from dlfp_edge.bench.jobs import EndlessBackground, background, foreground, running, wait_all
from dlfp_edge.bench.report import QUANTILE_COLUMNS, Progress, Report, measured_on, quantile_row
from dlfp_edge.engine import Engine
from dlfp_edge.runtime import Runtime
from dlfp_edge.settings import Placement, Settings

_PROMPT = 2000
_QUESTION, _ANSWER = 32, 4


def preempt(runtime: Runtime, arrivals: int, periods_s: Sequence[float], seconds: float, progress: Progress) -> Report:
    """Arrivals at random moments of an isolated background prefill; then arrivals at a steady period."""
    settings = Settings(placement=Placement.SHARED, context=4 * _PROMPT, background_sequences=2)
    parts = 1 + len(periods_s)
    progress(0, f"{arrivals} arrivals at random moments")
    with running(runtime, settings) as engine:
        first_tokens_s = _random_arrivals(engine, arrivals)
        stops_s, preemptions = list(engine.counters.preemption_s), engine.counters.preemptions
    rows = [
        quantile_row("interrupt to step's end", stops_s, None),
        quantile_row("arrival to first token", first_tokens_s, None),
    ]
    for done, period_s in enumerate(periods_s, start=1):
        progress(done / parts, f"an arrival every {period_s:g} s")
        with running(runtime, settings) as engine:
            rows.append(_steady(engine, period_s, seconds))
    return Report(
        "preempt",
        f"Foreground arrivals during background prefills of {_PROMPT} tokens, shared steps",
        (*QUANTILE_COLUMNS, "wasted %"),
        rows,
        notes=[
            f"{arrivals} arrivals at random moments caused {preemptions} interruptions",
            "wasted: tokens computed and lost to interruptions, of all tokens computed",
        ],
        facts={**measured_on(runtime), "arrivals": arrivals, "seconds": seconds},
    )


def _random_arrivals(engine: Engine, arrivals: int) -> list[float]:
    generator = random.Random(1)
    first_tokens_s: list[float] = []
    for index in range(arrivals):
        document = engine.submit(background(engine.runtime, _PROMPT, seed=index))
        time.sleep(generator.uniform(0.05, 1.0))
        first_tokens_s.append(_ask(engine, seed=index))
        document.cancel()
        document.wait()
    return first_tokens_s


def _steady(engine: Engine, period_s: float, seconds: float) -> tuple[Any, ...]:
    load = EndlessBackground(engine, _PROMPT)
    first_tokens_s: list[float] = []
    for index in range(max(2, round(seconds / period_s))):
        time.sleep(period_s)
        first_tokens_s.append(_ask(engine, seed=index))
    load.stop()
    computed, lost = engine.counters.computed_tokens, engine.counters.aborted_tokens
    wasted = 100 * lost / computed if computed else None
    return quantile_row(f"first token, an arrival every {period_s:g} s", first_tokens_s, wasted)


def _ask(engine: Engine, seed: int) -> float:
    """Seconds from a question's arrival to its first token."""
    [record] = wait_all([engine.submit(foreground(engine.runtime, _QUESTION, _ANSWER, seed))])
    return record.token_times[0] - record.arrived
