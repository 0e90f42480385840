"""Whether an engine stays the size it is: memory over minutes of mixed work with arrivals, cancels and reuse."""

from __future__ import annotations

import threading
import time
from random import Random
from statistics import median
from typing import Any

import psutil

from dlfp_edge.bench.jobs import background, foreground, running
from dlfp_edge.bench.report import Progress, Report, measured_on
from dlfp_edge.engine import Engine
from dlfp_edge.handle import Task
from dlfp_edge.runtime import Runtime
from dlfp_edge.settings import Settings
from dlfp_edge.task import Class, Finish

_SAMPLES = 60
_CANCELLED = 0.5
_STOPPING_S = 5.0


def soak(runtime: Runtime, seconds: float, progress: Progress) -> Report:
    """Random tasks of both classes for `seconds`, half of them cancelled; memory by quarter, and what was left over."""
    process, random, tasks, samples = psutil.Process(), Random(0), list[Task](), list[float]()
    threads_before = threading.active_count()
    with running(runtime, Settings()) as engine:
        threads_running = threading.active_count()
        ends = time.monotonic() + seconds
        next_sample = time.monotonic()
        while (now := time.monotonic()) < ends:
            _send(engine, random, tasks)
            if now >= next_sample:
                samples.append(process.memory_info().rss / 1e6)
                next_sample += seconds / _SAMPLES
                progress(1 - (ends - now) / seconds, f"{len(tasks)} tasks, {samples[-1]:.0f} MB")
            time.sleep(random.expovariate(2.0))
        for task in tasks:
            task.cancel()
        ended = [task.wait(60) for task in tasks]
        cells = _cells_left(engine)
    quarters = _quarters(samples)
    rows: list[tuple[Any, ...]] = [(f"quarter {number + 1}", value) for number, value in enumerate(quarters)]
    unfinished = sum(1 for record in ended if record.finish is None)
    return Report(
        "soak",
        f"Resident memory over {seconds:g} s, {len(tasks)} tasks",
        ("part", "median MB"),
        rows,
        notes=[
            f"last quarter / second quarter: {quarters[3] / quarters[1]:.3f}",
            f"KV cells left: {cells}; tasks without an end: {unfinished}; "
            f"threads before, during, after: {threads_before}, {threads_running}, {threading.active_count()}",
            f"finished {sum(r.finish in (Finish.STOP, Finish.LENGTH) for r in ended)}, "
            f"cancelled {sum(r.finish is Finish.CANCELLED for r in ended)}, failed {sum(r.failed for r in ended)}",
        ],
        facts={**measured_on(runtime), "samples_mb": samples, "cells_left": cells, "unfinished": unfinished},
    )


def _send(engine: Engine, random: Random, tasks: list[Task]) -> None:
    """One task; a growing backlog of background work would be a leak of the bench's own, so it is kept short."""
    kind = random.choice(list(Class))
    if kind is Class.BACKGROUND and engine.snapshot().background_queued > 8:
        kind = Class.FOREGROUND
    make = foreground if kind is Class.FOREGROUND else background
    prompt = random.randint(1, 100 if kind is Class.FOREGROUND else 1000)
    task = engine.submit(make(engine.runtime, prompt, random.randint(1, 40), seed=len(tasks)))
    tasks.append(task)
    if random.random() < _CANCELLED:
        engine.call_at(engine.clock.now() + random.expovariate(1.0), task.cancel)


def _cells_left(engine: Engine) -> int:
    """KV cells in use once the steps that held the last tasks have been stopped."""
    ends = time.monotonic() + _STOPPING_S
    while engine.snapshot().kv_used and time.monotonic() < ends:
        time.sleep(0.05)
    return engine.snapshot().kv_used


def _quarters(samples: list[float]) -> list[float]:
    size = max(1, len(samples) // 4)
    return [median(samples[index * size : (index + 1) * size] or samples[-1:]) for index in range(4)]
