"""Whether a request's output depends on how it was scheduled."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from dlfp_edge.bench.jobs import background, foreground, running, wait_all
from dlfp_edge.bench.report import Progress, Report, measured_on
from dlfp_edge.engine import Engine
from dlfp_edge.runtime import Runtime
from dlfp_edge.settings import Settings, parse_setting
from dlfp_edge.task import TaskSpec

SETTINGS = ("lanes/static", "lanes/dlfp", "shared/unlimited", "shared/fixed:16", "shared/dlfp")
_ARRIVALS_APART_S = 0.4
_SETTINGS = Settings(context=16384, foreground_sequences=3, background_sequences=2)
"""Exact kernels split the context evenly over the sequences, so there are no more of them than needed."""

Ids = dict[str, tuple[int, ...]]


def exact(runtime: Runtime, progress: Progress) -> Report:
    """Greedy output ids of the same requests under every setting, against each request run alone."""
    early = [background(runtime, 900, 8, seed=1), background(runtime, 700, 24, seed=2)]
    late = [foreground(runtime, length, 48, seed=length) for length in (33, 120, 410)]
    progress(0, "each request alone")
    alone = _alone(runtime, [*early, *late])
    rows: list[tuple[Any, ...]] = []
    for done, setting in enumerate(SETTINGS, start=1):
        progress(done / (1 + len(SETTINGS)), setting)
        ids, preemptions = _together(runtime, setting, early, late)
        same = [ids[label] == alone[label] for label in alone]
        rows.append((setting, len(same), sum(same), preemptions, all(same)))
    return Report(
        "exact",
        "Output ids against the same request alone",
        ("setting", "requests", "identical", "preemptions", "all identical"),
        rows,
        facts={**measured_on(runtime), "schedule_invariant": runtime.capabilities.schedule_invariant},
    )


def _alone(runtime: Runtime, specs: list[TaskSpec]) -> Ids:
    with running(runtime, _SETTINGS) as engine:
        return {spec.label: _ids(engine, [spec])[spec.label] for spec in specs}


def _together(runtime: Runtime, setting: str, early: list[TaskSpec], late: list[TaskSpec]) -> tuple[Ids, int]:
    placement, controller = parse_setting(setting)
    with running(runtime, replace(_SETTINGS, placement=placement, controller=controller)) as engine:
        tasks = [engine.submit(spec) for spec in early]
        for spec in late:
            time.sleep(_ARRIVALS_APART_S)
            tasks.append(engine.submit(spec))
        records = wait_all(tasks)
        return {record.label: tuple(record.output_token_ids) for record in records}, engine.counters.preemptions


def _ids(engine: Engine, specs: list[TaskSpec]) -> Ids:
    records = wait_all([engine.submit(spec) for spec in specs])
    return {record.label: tuple(record.output_token_ids) for record in records}
