"""A model's step time by the number of tokens in the step and by threads: one decode and the rest prefill."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from dlfp_edge.bench.report import Progress, Report, measured_on
from dlfp_edge.bench.steps import decode, open_lane, prefill, random_tokens, run_step, service_s
from dlfp_edge.runtime import Lane, Runtime, Step

_DECODER_CONTEXT = 64
_SINGLY = 64


def curve(runtime: Runtime, threads: Iterable[int], repeats: int, largest: int, progress: Progress) -> Report:
    """Median step times for 1 to 64 tokens, then powers of two up to `largest`, at each thread count."""
    counts = list(totals(runtime, largest))
    lane = open_lane(runtime, 2, _DECODER_CONTEXT + max(counts) + 1)
    columns = list(dict.fromkeys(threads))
    try:
        times: dict[int, list[float]] = {}
        for count in columns:
            begun = len(times) / len(columns)
            times[count] = _times_ms(
                runtime,
                lane,
                counts,
                count,
                repeats,
                lambda done, what, begun=begun: progress(begun + done / len(columns), what),  # type: ignore[misc]
            )
    finally:
        lane.shut()
    rows: list[tuple[Any, ...]] = [
        (total, *(times[count][index] for count in columns)) for index, total in enumerate(counts)
    ]
    return Report(
        "curve",
        "Step time in ms: one decode and the rest prefill of another sequence",
        ("tokens", *(f"{count} thread{'s' if count > 1 else ''}" for count in columns)),
        rows,
        notes=[f"median of {repeats}; the decode's context is {_DECODER_CONTEXT}, the prefill starts at 0"],
        facts={**measured_on(runtime), "repeats": repeats},
    )


def totals(runtime: Runtime, largest: int) -> Iterator[int]:
    """Total tokens to try: each up to 64, then powers of two; prefill shorter than the runtime allows is left out."""
    capabilities = runtime.capabilities
    total = 1
    while total <= min(largest, capabilities.largest_step):
        if total == 1 or total - 1 >= capabilities.min_chunk:
            yield total
        total = total + 1 if total < _SINGLY else 2 * total


def plot(report: Report, path: Path) -> None:
    """The curve as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    tokens = [row[0] for row in report.rows]
    for index, label in enumerate(report.columns[1:], start=1):
        axes.plot(tokens, [row[index] for row in report.rows], marker=".", label=label)
    axes.set(xscale="log", yscale="log", xlabel="tokens in the step", ylabel="ms", title=report.title)
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _times_ms(
    runtime: Runtime, lane: Lane, counts: list[int], threads: int, repeats: int, progress: Progress
) -> list[float]:
    tokens = random_tokens(runtime, max(counts))
    context = random_tokens(runtime, _DECODER_CONTEXT, seed=1)
    lane.truncate(0, 0)
    run_step(runtime, lane, Step((prefill(0, 0, context),), threads))
    work, times = sum(counts), list[float]()
    for index, total in enumerate(counts):
        progress(sum(counts[:index]) / work, f"{total} tokens on {threads} threads")
        times.append(_median_ms(runtime, lane, tokens[:total], threads, repeats))
    return times


def _median_ms(runtime: Runtime, lane: Lane, tokens: tuple[int, ...], threads: int, repeats: int) -> float:
    segments = [decode(0, _DECODER_CONTEXT, tokens[0])]
    if len(tokens) > 1:
        segments.append(prefill(1, 0, tokens[1:]))
    step = Step(tuple(segments), threads)
    times = []
    for _ in range(repeats):
        times.append(service_s(run_step(runtime, lane, step)) * 1000)
        lane.truncate(0, _DECODER_CONTEXT)
        lane.truncate(1, 0)
    return float(median(times))
