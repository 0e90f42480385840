"""A distribution of durations in eight figures."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

_LEVELS = (50.0, 90.0, 95.0, 99.0, 99.9)


class Distribution(BaseModel):
    """Durations in ms. Percentiles interpolate linearly between ranks, as `pandas.Series.quantile` does.

    Every figure is None where nothing was measured (`count` 0).
    """

    model_config = ConfigDict(frozen=True)

    mean: float | None = Field(default=None, description="ms")
    p50: float | None = Field(default=None, description="ms")
    p90: float | None = Field(default=None, description="ms")
    p95: float | None = Field(default=None, description="ms")
    p99: float | None = Field(default=None, description="ms")
    p999: float | None = Field(default=None, description="ms")
    max: float | None = Field(default=None, description="ms")
    count: int = Field(default=0, description="durations measured")


def distribution(durations_s: Iterable[float], *, scale: float = 1e3) -> Distribution:
    """The distribution of durations given in seconds; with `scale` 1, of anything, as it is."""
    values = np.fromiter(durations_s, dtype=np.float64) * scale
    if values.size == 0:
        return Distribution()
    p50, p90, p95, p99, p999 = (float(value) for value in np.percentile(values, _LEVELS))
    return Distribution(
        mean=float(values.mean()),
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        p999=p999,
        max=float(values.max()),
        count=int(values.size),
    )
