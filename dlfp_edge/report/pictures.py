"""Figures as SVG that follows the page's colours, light or dark, and as PNG on white."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dlfp_edge.report.families import Family

INK, MUTED, GRID, PAPER = "#1b1b1a", "#5d5d5c", "#e1e1df", "#fffffe"
WIDTH = 10.0
"""Inches, at 72 points each."""

_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper", **{each.colour: each.key for each in Family}}
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "figure.facecolor": "none",
    "figure.dpi": 72.0,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "dlfp-edge",
}
_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


@contextmanager
def styled() -> Iterator[None]:
    """The style in which figures are made and written."""
    with mpl.rc_context(_STYLE):
        yield


def new_figure(rows: int, columns: int, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure and its grid of axes, `height` inches in all."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def log_axis(axis: Any, text: Any = None) -> None:
    """A logarithmic axis with plain numbers; `text` writes one, where it is no plain number."""
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
    axis.set_major_formatter(FuncFormatter(text or (lambda value, _: f"{value:,.6g}")))
    axis.set_minor_formatter(NullFormatter())


def to_svg(figure: Figure, name: str, title: str) -> Markup:
    """The figure as an element for a page. `name` is a prefix that keeps its ids apart, `title` says what it shows."""
    file = BytesIO()
    figure.savefig(file, format="svg", metadata=_NO_METADATA)
    text = file.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"""(\bid="|href="#|url\(#)""", rf"\g<1>{name}-", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1))


def to_png(figure: Figure) -> bytes:
    """The figure as a PNG on white."""
    file = BytesIO()
    figure.savefig(file, format="png", dpi=160, facecolor="white")
    return file.getvalue()
