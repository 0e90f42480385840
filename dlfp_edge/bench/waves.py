"""What background work gains from running as a batch: documents per minute, together and one at a time."""

from __future__ import annotations

from typing import Any

from dlfp_edge.bench.report import Progress, Report, measured_on
from dlfp_edge.engine import Engine
from dlfp_edge.experiment.session import run_workload, running
from dlfp_edge.experiment.sizing import sized
from dlfp_edge.experiment.workload import Workload, load_workload
from dlfp_edge.measure.percentiles import distribution
from dlfp_edge.measure.tally import Tally
from dlfp_edge.plugins import detect_device
from dlfp_edge.runtime import Runtime
from dlfp_edge.settings import Settings
from dlfp_edge.task import Class

_ARMS = {"alone": Settings(), "as a batch": Settings(), "one at a time": Settings(background_sequences=1)}
_ALONE_S = 15.0


def waves(runtime: Runtime, documents: int, rounds: int, progress: Progress) -> Report:
    """The bundled `ingest-summary` until `documents` are done, eight at a time and one at a time, in turn."""
    pools = {name: (Tally(), Tally()) for name in _ARMS}
    for number in range(rounds):
        for part, (name, settings) in enumerate(_ARMS.items()):
            progress((number + part / len(_ARMS)) / rounds, f"round {number + 1} of {rounds}: {name}")
            workload = _workload(documents, alone=name == "alone")
            engine = Engine(runtime, sized(settings, workload), detect_device().cpu())
            with running(engine):
                outcome = run_workload(engine, workload, seed=number, windows=None)
            pools[name][0].merge(outcome.tally.foreground)
            pools[name][1].merge(outcome.tally.background)
    rows = [_row(name, *tallies) for name, tallies in pools.items()]
    batch, single = rows[1][1], rows[2][1]
    return Report(
        "waves",
        f"ingest-summary: {rounds} x {documents} documents",
        ("background", "documents/min", "P50 ITL ms", "P99 ITL ms", "max ITL ms", "max TTFT ms"),
        rows,
        notes=[f"documents per minute, as a batch / one at a time: {batch / single:.2f}"],
        facts={**measured_on(runtime), "ratio": batch / single, "rounds": rounds, "documents": documents},
    )


def _workload(documents: int, *, alone: bool) -> Workload:
    """A fixed number of documents, so that none is half done when time is up; without any, a fixed time."""
    workload = load_workload("ingest-summary")
    if alone:
        only = workload.with_streams(workload.of_class(Class.FOREGROUND))
        return only.model_copy(update={"duration_s": _ALONE_S})
    background = [s.model_copy(update={"requests": documents}) for s in workload.of_class(Class.BACKGROUND)]
    limited = workload.with_streams([*workload.of_class(Class.FOREGROUND), *background])
    return limited.model_copy(update={"duration_s": None})


def _row(name: str, foreground: Tally, background: Tally) -> tuple[Any, ...]:
    gaps, first = distribution(foreground.gaps), distribution(foreground.ttft)
    per_min = 60 * background.complete / background.counted_s if name != "alone" else None
    return (name, per_min, gaps.p50, gaps.p99, gaps.max, first.max)
