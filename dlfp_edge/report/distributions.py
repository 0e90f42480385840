"""Whole distributions, as survival curves on logarithmic axes, where tails can be seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
from matplotlib.figure import Figure

from dlfp_edge.experiment.document import Result
from dlfp_edge.experiment.results import FEW_TURNS, Row
from dlfp_edge.report.families import Family, alone, best, family, sweeps
from dlfp_edge.report.pictures import INK, MUTED, log_axis, new_figure
from dlfp_edge.report.trials import Values
from dlfp_edge.report.words import number, short

_DASHES = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)), (0, (2, 1)))
_POINTS = 240
_FEW = 30
"""So few durations have a dot each: one alone is no line."""

_LEVELS = ((0.1, "P90"), (0.01, "P99"), (0.001, "P99.9"))


def shown_arms(result: Result) -> list[Row]:
    """The arms that are drawn: the candidate and its solo, the baseline, the best of each sweep, peers."""
    rows = {row.setting: row for row in result.rows}
    candidate = rows.get(result.candidate)
    chosen = [result.candidate, candidate.solo if candidate is not None else None, result.baseline]
    swept = sweeps(result.rows)
    chosen += [point.setting for points in swept.values() if (point := best(points, candidate)) is not None]
    points = {row.setting for series in swept.values() for row in series}
    peers = (Family.SERVER, Family.PAIR, Family.ENDPOINT)
    chosen += [
        row.setting for row in result.rows if family(row) in peers and not alone(row) and row.setting not in points
    ]
    return [rows[name] for name in dict.fromkeys(chosen) if name in rows]


def plot_survival(rows: Sequence[Row], candidate: str, values: Callable[[Row], Values], title: str) -> Figure | None:
    """The share of durations longer than each; None where nothing was measured."""
    measured = [(row, np.sort(of)) for row in rows if (of := values(row)).size and of[-1] > 0]
    if not measured:
        return None
    measured.sort(key=lambda pair: float(np.percentile(pair[1], 99)))
    figure, grid = new_figure(1, 1, 4.2)
    axes = grid[0][0]
    drawn: Counter[Family] = Counter()
    for row, ordered in measured:
        kind = family(row)
        dash = ":" if alone(row) else next(islice(_DASHES, drawn[kind] % len(_DASHES), None))
        drawn[kind] += not alone(row)
        axes.plot(
            *_survival(ordered),
            color=kind.colour,
            linestyle=dash,
            marker="." if ordered.size <= _FEW else None,
            linewidth=2.6 if row.setting == candidate else 1.4,
            zorder=4 if row.setting == candidate else 3,
            label=f"{short(row.setting)}: {_told(ordered)} of {ordered.size:,}",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    lowest = max(0.5 / max(ordered.size for _, ordered in measured), 1e-6)
    axes.set_ylim(min(lowest, 0.05), 1.15)
    log_axis(axes.xaxis)
    log_axis(axes.yaxis, lambda share, _: f"{100 * share:.4g}%")
    for level, name in _LEVELS:
        if level > axes.get_ylim()[0]:
            axes.axhline(level, linewidth=0.7, color=MUTED, zorder=1)
            axes.text(
                0.998,
                level,
                name,
                transform=axes.get_yaxis_transform(),
                ha="right",
                va="bottom",
                fontsize=7.5,
                color=MUTED,
            )
    axes.grid(visible=True)
    axes.set_xlabel(title)
    axes.set_title("share that is as long or longer")
    figure.legend(loc="outside right upper", fontsize=8, labelcolor=INK)
    return figure


def _told(ordered: Values) -> str:
    """The figure beside a name: few durations have no P99."""
    if ordered.size < FEW_TURNS:
        return f"longest {number(ordered[-1])} ms"
    return f"P99 {number(float(np.percentile(ordered, 99)))} ms"


def _survival(ordered: Values) -> tuple[Values, Values]:
    """Some points of the curve, the longest durations all among them."""
    ranks = np.unique(np.geomspace(1, ordered.size, _POINTS).astype(int))
    return ordered[ordered.size - ranks], ranks / ordered.size
