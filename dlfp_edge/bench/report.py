"""What a bench hands back: a table, and the facts it was measured under."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dlfp_edge.runtime import Runtime

Progress = Callable[[float, str], None]
"""Called between measurements with the part that is done, from 0 to 1, and what comes next."""


@dataclass(slots=True)
class Report:
    """One table of measurements. `notes` say in words what a reader must know to read the figures."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The report with each row as an object."""
        return {
            "bench": self.name,
            "title": self.title,
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
            "notes": self.notes,
            **self.facts,
        }


def measured_on(runtime: Runtime) -> dict[str, Any]:
    """Where the figures come from: the runtime, and whether its time is simulated."""
    return {"simulated": runtime.clock.name == "virtual", "runtime": runtime.describe()}


def quantiles_ms(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Median, 99th percentile and maximum, in milliseconds; not numbers where nothing was measured."""
    if not seconds:
        return (float("nan"),) * 3
    p50, p99, top = np.quantile(np.asarray(seconds), (0.5, 0.99, 1.0)) * 1000
    return float(p50), float(p99), float(top)


def quantile_row(label: str, seconds: Sequence[float], *more: Any) -> tuple[Any, ...]:
    """A row of label, count, median, 99th percentile and maximum."""
    return (label, len(seconds), *quantiles_ms(seconds), *more)


QUANTILE_COLUMNS: tuple[str, ...] = ("what", "count", "p50 ms", "p99 ms", "max ms")
