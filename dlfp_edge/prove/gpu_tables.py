"""The predictions as people read them: a table a point, and how far each is from what the paper gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dlfp_edge.prove.gpus import HEADING, METRICS, Metric, PointResult, Predictions, Result

_NAMES = {"itl": "P99 ITL", "ttft": "P99 TTFT", "e2el": "P99 E2EL"}
_UNITS = {"itl": ("ms", 1.0), "ttft": ("s", 1e3), "e2el": ("s", 1e3)}
"""A unit's name, and how many ms it is."""

_ACCURACY = ("point", "candidate", "figure", "predicted", "lowest", "highest", "paper", "error", "in range")


class Table(NamedTuple):
    """A title, columns, and rows of texts."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(predictions: Predictions) -> list[Table]:
    """A table a point, then the errors."""
    target = f"gaps > {predictions.target_itl_ms:g} ms %"
    points = [_point(point, target) for point in predictions.points]
    rows = [row for point in predictions.points for result in point.results for row in _errors(point, result)]
    return [*points, Table("Against the paper (fitted: the baseline's rows; predicted: all others)", _ACCURACY, rows)]


def markdown(predictions: Predictions) -> str:
    """The tables as a Markdown file."""
    parts = [f"# {HEADING}"]
    for table in tables(predictions):
        rule = ["---"] * len(table.columns)
        lines = [f"| {' | '.join(row)} |" for row in (table.columns, rule, *table.rows)]
        parts.append("\n".join([f"**{table.title}**", "", *lines]))
    return "\n\n".join(parts) + "\n"


def _point(result: PointResult, target: str) -> Table:
    columns = ["candidate"]
    for name in METRICS:
        columns += [f"{_NAMES[name]} {_UNITS[name][0]}", "change %"]
    title = f"{result.point.title}: predicted (paper)"
    return Table(title, [*columns, "SLO %", target], [_row(each) for each in result.results])


def _row(result: Result) -> list[str]:
    row = [result.candidate.name]
    for name in METRICS:
        metric, unit = result.metrics[name], _UNITS[name][1]
        paper = None if metric.paper_ms is None else metric.paper_ms / unit
        row += [
            _beside(_figure, metric.predicted_ms / unit, paper),
            _beside(_change, metric.change, metric.paper_change),
        ]
    passes = _beside(_percent, result.passes.predicted, result.passes.paper)
    return [*row, passes, _percent(result.above)]


def _errors(point: PointResult, result: Result) -> Iterator[list[str]]:
    names = [point.point.name, result.candidate.name]
    for name in METRICS:
        metric = result.metrics[name]
        if metric.paper_ms is not None and metric.error is not None:
            figures = _figures(name, metric, metric.paper_ms)
            yield [*names, *figures, _error(metric.error, "%"), _yes(metric.in_range)]
        if metric.change is not None and metric.paper_change is not None and metric.change_error is not None:
            changes = [_change(metric.change), "-", "-", _change(metric.paper_change)]
            yield [*names, f"{_NAMES[name]}, change %", *changes, _error(metric.change_error, " points"), "-"]
    passes = result.passes
    if passes.paper is not None:
        shares = [_percent(share) for share in (passes.predicted, passes.lowest, passes.highest, passes.paper)]
        off = 100 * (passes.predicted - passes.paper)
        yield [*names, "SLO passes, %", *shares, _error(off, " points"), _yes(passes.in_range)]


def _figures(name: str, metric: Metric, paper_ms: float) -> list[str]:
    values = (metric.predicted_ms, metric.lowest_ms, metric.highest_ms, paper_ms)
    return [f"{_NAMES[name]}, {_UNITS[name][0]}", *(_figure(value / _UNITS[name][1]) for value in values)]


def _beside(text: Callable[[float], str], predicted: float | None, paper: float | None) -> str:
    if predicted is None:
        return "-"
    return text(predicted) if paper is None else f"{text(predicted)} ({text(paper)})"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _change(value: float) -> str:
    return f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _yes(whether: bool | None) -> str:
    return "yes" if whether else "no"


def _error(value: float, unit: str) -> str:
    return f"{_change(value)}{unit}"
