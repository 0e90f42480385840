"""Conversations and documents in a context too small for them: whether everybody gets a whole answer, in time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from dlfp_edge.bench.child import answer_parent, in_child
from dlfp_edge.bench.forecast import forecaster
from dlfp_edge.bench.loading import load_runtime
from dlfp_edge.bench.report import Progress, Report, measured_on
from dlfp_edge.engine import Engine
from dlfp_edge.experiment.session import run_workload, running
from dlfp_edge.experiment.workload import Stream, Workload, load_workload
from dlfp_edge.measure.percentiles import distribution
from dlfp_edge.plugins import detect_device
from dlfp_edge.pressure import SAVED_SHARE
from dlfp_edge.runtime import LoadOptions, Runtime
from dlfp_edge.settings import Placement, Settings
from dlfp_edge.task import Class, Finish

FITS = 3
"""Conversations, and documents, that the small context has room for."""

_GRAIN = 256
_SAMPLE_S = 0.05


@dataclass(frozen=True, slots=True)
class _Part:
    """What came of one run. `over_target` and `cached_ttft_s` are as in `measure.tally.Tally`."""

    complete: int
    ids: dict[str, list[int]]
    pauses: int
    cached_tokens: int
    over_target: list[float]
    cached_ttft_s: list[float]
    peak_mb: float
    predicted_mb: float | None
    facts: dict[str, Any]


def crowded(
    runtime: str, model: Path | None, exact: bool, runtime_options: Mapping[str, str], progress: Progress
) -> Report:
    """The bundled `conversations` in both placements, with room for all of it and with room for three of each."""
    parts: dict[tuple[Placement, bool], _Part] = {}
    orders = [(placement, small) for placement in (Placement.LANES, Placement.SHARED) for small in (False, True)]
    given = (runtime, None if model is None else str(model), exact, dict(runtime_options))
    for done, (placement, small) in enumerate(orders):
        progress(done / len(orders), f"{placement.value}, {'room for three' if small else 'room for all'}")
        parts[placement, small] = _Part(**in_child(__name__, *given, placement.value, small))
    roomy = parts[orders[0][0], False]
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
            "over T",
            "over T %",
            "second-turn TTFT ms",
            "peak MB",
            "predicted MB",
            "peak / predicted",
        ),
        [_row(order, part, roomy) for order, part in parts.items()],
        notes=[
            "ids are compared with those in the roomy context; they are the same by design with --exact only",
            "T is the target in force at each step, for as many streams as decoded in it",
            "over T counts the foreground's gaps while background work exists, once a step however many streams saw it",
            "each row ran in a process of its own; its memory is predicted with every KV cell in use and, where there "
            f"is room for three, with all that paused tasks may save: {SAVED_SHARE:.0%} of the KV cells",
        ],
        facts=roomy.facts,
    )


def measure(
    runtime_name: str,
    model: Path | None,
    exact: bool,
    runtime_options: Mapping[str, str],
    placement: Placement,
    small: bool,
) -> _Part:
    """Run the workload in this process, which has loaded no model before."""
    workload = load_workload("conversations")
    forecast = forecaster(runtime_name)
    options = LoadOptions(model, cpus=(0,), cpu_limit=1, exact=exact, options=runtime_options)
    if forecast is not None:
        forecast.expected_resident(options, (), 0)  # loads the runtime's packages, which are no part of a forecast
    before = psutil.Process().memory_info().rss
    with closing(load_runtime(runtime_name, model, exact=exact, options=runtime_options)) as runtime:
        engine = Engine(runtime, _settings(runtime, workload, placement, small=small), detect_device().cpu())
        with _peak_mb() as peak, running(engine):
            outcome = run_workload(engine, workload, windows=None)
        predicted = None
        if forecast is not None:
            lanes = engine.lane_specs
            used = forecast.expected_resident(options, lanes, max(lane.context for lane in lanes))[1]
            saved = SAVED_SHARE * forecast.inspect(options, lanes)["memory"]["kv"]
            predicted = (before + used + (saved if small and runtime.capabilities.save else 0)) / 1e6
        facts = {**measured_on(runtime), "schedule_invariant": runtime.capabilities.schedule_invariant}
    tally = outcome.tally
    return _Part(
        complete=sum(record.finish in (Finish.LENGTH, Finish.STOP) for record in outcome.records),
        ids={record.label: list(record.output_token_ids) for record in outcome.records},
        pauses=tally.foreground.pauses + tally.background.pauses,
        cached_tokens=tally.foreground.cached_tokens,
        over_target=list(tally.foreground.over_target),
        cached_ttft_s=list(tally.foreground.cached_ttft),
        peak_mb=max(peak),
        predicted_mb=predicted,
        facts=facts,
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
    longest = (stream.longest_prompt or 0) + stream.answer_length(stream.longest)
    return -(-longest // _GRAIN) * _GRAIN


def _row(order: tuple[Placement, bool], part: _Part, roomy: _Part) -> tuple[Any, ...]:
    over = distribution(part.over_target, scale=1.0)
    above = sum(gap > 1 for gap in part.over_target)
    return (
        order[0].value,
        "three" if order[1] else "all",
        part.complete,
        len(part.ids),
        sum(ids == roomy.ids.get(label) for label, ids in part.ids.items()),
        part.pauses,
        part.cached_tokens,
        over.p50,
        over.p99,
        over.max,
        above,
        100 * above / over.count if over.count else None,
        distribution(part.cached_ttft_s).p50,
        part.peak_mb,
        part.predicted_mb,
        None if part.predicted_mb is None else part.peak_mb / part.predicted_mb,
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


def _answer(
    runtime: str, model: str | None, exact: bool, runtime_options: dict[str, str], placement: str, small: bool
) -> dict[str, Any]:
    file = None if model is None else Path(model)
    return asdict(measure(runtime, file, exact, runtime_options, Placement(placement), small))


if __name__ == "__main__":
    answer_parent(_answer)
