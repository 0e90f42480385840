"""The picture of a comparison: how smooth the foreground is against how much background work gets done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dlfp_edge.measure.comparison import Row


def plot_frontier(rows: Sequence[Row], path: Path) -> None:
    """Draw P99 of the gaps a reader sees (shown gaps where paced) over background prompt tokens per second, as a PNG.

    Solo arms are drawn as horizontal lines: they have no background. Raises OSError if `path` cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for row in rows:
        p99 = row.itl_p99 if row.shown_p99 is None else row.shown_p99
        if p99 is None:
            continue
        if row.background_tokens_per_s is None:
            axes.axhline(p99, linewidth=1, linestyle=":", color="grey")
            axes.annotate(row.setting, (0, p99), textcoords="offset points", xytext=(2, 3), color="grey", fontsize=8)
            continue
        axes.plot(row.background_tokens_per_s, p99, "o")
        axes.annotate(
            row.setting,
            (row.background_tokens_per_s, p99),
            textcoords="offset points",
            xytext=(5, 5),
            fontsize=8,
        )
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("background prompt tokens per second")
    axes.set_ylabel("P99 gap between foreground tokens, ms")
    axes.grid(visible=True, which="both", alpha=0.3)
    FigureCanvasAgg(figure).print_png(str(path))
