"""Conversations and documents in a context too small for them: whether everybody gets a whole answer, in time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psutil

from dlfp_edge.bench.report import Progress, Report, measured_on
from dlfp_edge.engine import Engine
from dlfp_edge.experiment.session import Outcome, run_workload, running
from dlfp_edge.experiment.workload import Stream, Workload, load_workload
from dlfp_edge.measure.percentiles import distribution
from dlfp_edge.plugins import detect_device
from dlfp_edge.runtime import Runtime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, Finish

FITS = 3
"""Conversations, and documents, that the small context has room for."""

_GRAIN = 256
_SAMPLE_S = 0.05


@dataclass(slots=True)
class _Part:
    outcome: Outcome
    ids: dict[str, tuple[int, ...]]
    peak_mb: float


def crowded(runtime: Runtime, progress: Progress) -> Report:
    """The bundled `conversations` in both placements, with room for all of it and with room for three of each."""
    workload = load_workload("conversations")
    parts: dict[tuple[Placement, bool], _Part] = {}
    orders = [(placement, small) for placement in (Placement.LANES, Placement.SHARED) for small in (False, True)]
    for done, (placement, small) in enumerate(orders):
        label = f"{placement.value}, {'room for three' if small else 'room for all'}"
        progress(done / len(orders), label)
        parts[placement, small] = _run(runtime, workload, _settings(runtime, workload, placement, small=small))
    rows = [_row(order, part, parts[order[0], False]) for order, part in parts.items()]
    return Report(
        "crowded",
        "8 conversations of 10 turns and 40 documents",
        (
            "placement",
            "room for",
            "complete",
            "of",
            "same ids",
            "pauses",
            "cached tokens",
            "median gap / T",
            "P99 gap / T",
            "max gap / T",
            "second-turn TTFT ms",
            "peak MB",
        ),
        rows,
        notes=[
            "ids are compared with those in the roomy context; they are the same by design with --exact only",
            "T is the target in force at each step, for as many streams as decoded in it",
        ],
        facts={**measured_on(runtime), "schedule_invariant": runtime.capabilities.schedule_invariant},
    )


def _settings(runtime: Runtime, workload: Workload, placement: Placement, *, small: bool) -> Settings:
    """A context for three of each kind, or for all. Sequences that share no cells are as many as fit."""
    foreground, background = (workload.of_class(member)[0] for member in Class)
    counts = (FITS, FITS) if small else (foreground.clients or 1, background.clients or 1)
    cells = (_cells(foreground), _cells(background))
    if not runtime.capabilities.fork:
        cells = (max(cells), max(cells)) if placement is Placement.SHARED else cells
    need = (counts[0] * cells[0], counts[1] * cells[1])
    settings = Settings(placement=placement, context=sum(need), foreground_share=need[0] / sum(need))
    if runtime.capabilities.fork:
        return replace(settings, foreground_sequences=foreground.clients or 1, background_sequences=8)
    return replace(settings, foreground_sequences=counts[0], background_sequences=counts[1])


def _cells(stream: Stream) -> int:
    longest = (stream.longest_prompt or 0) + stream.max_tokens
    return -(-longest // _GRAIN) * _GRAIN


def _run(runtime: Runtime, workload: Workload, settings: Settings) -> _Part:
    engine = Engine(runtime, settings, detect_device().cpu())
    with _peak_mb() as peak, running(engine):
        outcome = run_workload(engine, workload, windows=None)
    ids = {record.label: tuple(record.output_token_ids) for record in outcome.records}
    return _Part(outcome, ids, max(peak))


def _row(order: tuple[Placement, bool], part: _Part, roomy: _Part) -> tuple[Any, ...]:
    records = list(part.outcome.records)
    tally = part.outcome.tally.foreground
    whole = sum(record.finish in (Finish.LENGTH, Finish.STOP) for record in records)
    same = sum(part.ids[label] == roomy.ids.get(label) for label in part.ids)
    over = distribution(tally.over_target, scale=1.0)
    return (
        order[0].value,
        "three" if order[1] else "all",
        whole,
        len(records),
        same,
        tally.pauses + part.outcome.tally.background.pauses,
        tally.cached_tokens,
        over.p50,
        over.p99,
        over.max,
        distribution(tally.cached_ttft).p50,
        part.peak_mb,
    )


@contextmanager
def _peak_mb() -> Iterator[list[float]]:
    """Resident memory of this process while the block runs, sampled."""
    samples, stop, process = [0.0], threading.Event(), psutil.Process()

    def sample() -> None:
        while not stop.wait(_SAMPLE_S):
            samples.append(process.memory_info().rss / 1e6)

    watcher = threading.Thread(target=sample, name="memory sampler", daemon=True)
    watcher.start()
    try:
        yield samples
    finally:
        stop.set()
        watcher.join()
