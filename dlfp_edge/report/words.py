"""Figures as people read them."""

from __future__ import annotations

NONE = "–"
"""What stands where nothing was measured."""


def number(value: float | None) -> str:
    """A figure with three significant digits, whole from 100 on."""
    if value is None:
        return NONE
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    if abs(value) < 1:
        return f"{value:.3g}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def percent(share: float | None) -> str:
    """A share from 0 to 1 in percent; one that is not all of it never reads 100%."""
    if share is None:
        return NONE
    return f"{100.0 * share:.3g}%" if share < 0.995 else f"{100.0 * share:.6g}%"


def short(label: str) -> str:
    """A label for a picture, its middle left out where it is long."""
    return label if len(label) <= _LONGEST else f"{label[: _LONGEST // 2]}…{label[-_LONGEST // 2 + 1 :]}"


_LONGEST = 34


def minutes(seconds: float) -> str:
    """A time that something takes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
