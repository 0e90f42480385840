"""Percentiles are those that pandas gives."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.measure.percentiles import Distribution, distribution

from .records import durations


@given(st.lists(durations, min_size=1, max_size=300))
def test_agrees_with_pandas(values: list[float]) -> None:
    ours, series = distribution(values), pd.Series(values) * 1e3
    for name, level in {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}.items():
        assert getattr(ours, name) == pytest.approx(series.quantile(level), abs=1e-6)
    assert ours.mean == pytest.approx(series.mean(), abs=1e-6)
    assert ours.max == pytest.approx(series.max())
    assert ours.count == len(values)


@pytest.mark.parametrize("seed", [801, 802, 803])
@pytest.mark.parametrize("count", [1, 2, 99, 100, 1000, 50_000])
def test_agrees_with_pandas_on_gaps_as_they_come(seed: int, count: int) -> None:
    gaps = np.random.default_rng(seed).lognormal(-4.0, 1.5, count)
    ours, series = distribution(gaps), pd.Series(gaps) * 1e3
    expected = series.quantile([0.5, 0.9, 0.95, 0.99, 0.999]).tolist()
    assert [ours.p50, ours.p90, ours.p95, ours.p99, ours.p999] == pytest.approx(expected, rel=1e-12)


def test_nothing_measured_gives_no_figures() -> None:
    assert distribution([]) == Distribution()
    assert set(Distribution().model_dump().values()) == {None, 0}


@pytest.mark.parametrize("values", [[0.25], [0.25, 0.25, 0.25]])
def test_equal_durations_have_one_percentile(values: list[float]) -> None:
    figures = distribution(values).model_dump(exclude={"count"})
    assert set(figures.values()) == {250.0}
