"""The picture of a comparison: how smooth the foreground is against how much background work gets done."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from dlfp_edge.measure.comparison import Row

_MARKERS = "osD^vP*X<>"


def plot_frontier(rows: Sequence[Row], path: Path, title: str) -> None:
    """Draw P99 of the gaps a reader sees (shown gaps where paced) over background prompt tokens per second, as a PNG.

    Solo arms are lines: they have no background. Raises OSError if `path` cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    markers = cycle(_MARKERS)
    for row in rows:
        p99 = row.itl_p99 if row.shown_p99 is None else row.shown_p99
        if p99 is None:
            continue
        if row.background_tokens_per_s is None:
            axes.axhline(p99, linewidth=1, linestyle=":", color="grey", label=f"{row.setting}: {p99:.0f} ms")
        else:
            axes.plot(row.background_tokens_per_s, p99, next(markers), label=f"{row.setting}: {p99:.0f} ms")
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("background prompt tokens per second")
    axes.set_ylabel("P99 gap between foreground tokens, ms")
    axes.set_title(title)
    axes.grid(visible=True, which="both", alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    FigureCanvasAgg(figure).print_png(str(path))
