"""Whether an engine stays what it is: memory, cells and overhead over hours of arrivals, cancels, pauses and reuse."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Any

import psutil

from dlfp_edge.bench.report import Progress, Report, measured_on
from dlfp_edge.bench.steps import random_tokens
from dlfp_edge.engine import Engine
from dlfp_edge.errors import QueueFull
from dlfp_edge.experiment.session import is_virtual, running
from dlfp_edge.handle import Task
from dlfp_edge.plugins import detect_device
from dlfp_edge.runtime import Runtime, Sampling
from dlfp_edge.settings import Settings
from dlfp_edge.task import Class, TaskRecord, TaskSpec

_SAMPLES = 80
_CANCELLED = 0.3
_TALKS = 6
_CONTEXT = 3600
"""Too few cells for what runs at once, so that tasks are paused and conversations fall out of the cache."""

_SETTINGS = Settings(context=_CONTEXT, foreground_share=0.4, queue_limit=12)
_STOPPING_S = 10.0


@dataclass(slots=True)
class _Load:
    """Arrivals at random until `ends`, all in the engine's thread: it holds no task longer than the engine does."""

    engine: Engine
    ends: float
    mean_gap_s: float
    progress: Progress
    random: Random = field(default_factory=lambda: Random(0))
    process: psutil.Process = field(default_factory=psutil.Process)
    live: dict[str, Task] = field(default_factory=dict)
    talks: list[tuple[int, ...]] = field(default_factory=lambda: [()] * _TALKS)
    ended: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    memory_mb: list[float] = field(default_factory=list)
    overhead_s: list[float] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        self.engine.call_at(self.engine.clock.now(), self._arrive)
        span_s = self.ends - self.engine.clock.now()
        for number in range(_SAMPLES):
            self.engine.call_at(self.ends - span_s * (1 - (number + 1) / _SAMPLES), self._sample)

    def _arrive(self) -> None:
        now = self.engine.clock.now()
        if now >= self.ends:
            for task in list(self.live.values()):
                task.cancel()
            self._check_done()
            return
        self._send()
        self.engine.call_at(now + self.random.expovariate(1 / self.mean_gap_s), self._arrive)

    def _send(self) -> None:
        self.sent += 1
        talk = self.random.randrange(_TALKS)
        spec = self._background() if self.random.random() < 0.5 else self._turn(talk)
        try:
            task = self.engine.submit(spec, on_finish=lambda record: self._finished(record, spec, talk))
        except QueueFull:
            self.ended["queue full"] += 1
            return
        self.live[task.request_id] = task
        if self.random.random() < _CANCELLED:
            self.engine.call_at(self.engine.clock.now() + self.random.expovariate(0.5), task.cancel)

    def _turn(self, talk: int) -> TaskSpec:
        said = self.talks[talk] if len(self.talks[talk]) < 900 else ()
        prompt = (*said, *random_tokens(self.engine.runtime, self.random.randint(1, 60), seed=self.sent))
        output = self.random.randint(1, 40) if self.random.random() < 0.9 else 400
        return TaskSpec(prompt, Class.FOREGROUND, output, Sampling(ignore_eos=True))

    def _background(self) -> TaskSpec:
        text = random_tokens(self.engine.runtime, self.random.randint(1, 900), seed=-self.sent)
        if self.random.random() < 0.2:
            return TaskSpec(text, Class.BACKGROUND, embed=True)
        output = self.random.randint(1, 30) if self.random.random() < 0.8 else 700
        return TaskSpec(text, Class.BACKGROUND, output, Sampling(ignore_eos=True))

    def _finished(self, record: TaskRecord, spec: TaskSpec, talk: int) -> None:
        self.live.pop(record.request_id, None)
        self.ended[record.finish.value if record.finish else "none"] += 1
        if spec.task_class is Class.FOREGROUND:
            self.talks[talk] = (*spec.prompt, *record.output_token_ids)
        self._check_done()

    def _check_done(self) -> None:
        if not self.live and self.engine.clock.now() >= self.ends:
            self.done.set()

    def _sample(self) -> None:
        self.memory_mb.append(self.process.memory_info().rss / 1e6)
        plans = self.engine.counters.plan_s
        self.overhead_s.append(median(plans) if plans else 0.0)
        plans.clear()
        what = f"{self.sent} tasks, {self.engine.counters.pauses} pauses, {self.memory_mb[-1]:.0f} MB"
        self.progress(len(self.memory_mb) / _SAMPLES, what)


def soak(runtime: Runtime, seconds: float, progress: Progress) -> Report:
    """Random tasks for `seconds` on the runtime's clock: memory and overhead by quarter, and what is left over."""
    threads_before = threading.active_count()
    engine = Engine(runtime, _SETTINGS, detect_device().cpu())
    with running(engine):
        # A simulated model answers at once what a real one works on for seconds; arrivals keep either busy.
        load = _Load(engine, engine.clock.now() + seconds, 1.0, progress)
        threads_running = threading.active_count()
        load.start()
        _wait(engine, load, seconds)
        cells = _cells_left(engine)
        counters = engine.counters
    memory, overhead = _quarters(load.memory_mb), _quarters(load.overhead_s)
    rows: list[tuple[Any, ...]] = [
        (f"quarter {number + 1}", memory[number], 1e6 * overhead[number]) for number in range(4)
    ]
    return Report(
        "soak",
        f"{seconds / 60:g} minutes of arrivals, cancels and pauses: {load.sent} tasks",
        ("part", "memory, median MB", "overhead a step, median us"),
        rows,
        notes=[
            f"memory, last quarter / second: {memory[3] / memory[1]:.3f}; "
            f"overhead, last / second: {overhead[3] / overhead[1]:.2f}",
            f"KV cells left: {cells}; tasks without an end: {len(load.live)}; threads before, during, after: "
            f"{threads_before}, {threads_running}, {threading.active_count()}",
            f"ended: {', '.join(f'{name} {count}' for name, count in sorted(load.ended.items()))}; "
            f"pauses {counters.pauses}, computed again {counters.recomputed}, preemptions {counters.preemptions}",
        ],
        facts={
            **measured_on(runtime),
            "samples_mb": load.memory_mb,
            "overhead_s": load.overhead_s,
            "cells_left": cells,
            "unfinished": len(load.live),
            "ended": dict(load.ended),
            "pauses": counters.pauses,
        },
    )


def _wait(engine: Engine, load: _Load, seconds: float) -> None:
    if is_virtual(engine):
        engine.run_until(load.done.is_set)
    else:
        load.done.wait(seconds + 60)


def _cells_left(engine: Engine) -> int:
    """KV cells in use once what ended tasks left is dropped and the steps that held the last tasks have ended."""
    ends = engine.clock.now() + _STOPPING_S
    empty = threading.Event()

    def look() -> None:
        if not engine.snapshot().kv_used or engine.clock.now() >= ends:
            empty.set()
            return
        engine.forget_prefixes()
        engine.call_at(engine.clock.now() + 0.05, look)

    engine.call_at(engine.clock.now() + 0.05, look)
    if is_virtual(engine):
        engine.run_until(empty.is_set)
    else:
        empty.wait(2 * _STOPPING_S)
    return engine.snapshot().kv_used


def _quarters(samples: list[float]) -> list[float]:
    size = max(1, len(samples) // 4)
    return [median(samples[index * size : (index + 1) * size] or samples[-1:]) for index in range(4)]
