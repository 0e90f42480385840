"""Gaps against solo: shares and excess are those that pandas gives."""

from __future__ import annotations

from array import array

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.measure.interference import Interference, over_solo

from .records import durations

medians = st.floats(min_value=1e-3, max_value=10.0)
streams = st.dictionaries(
    st.sampled_from("abcd"), st.tuples(st.lists(durations, min_size=1, max_size=50), medians), min_size=1
)


@given(streams)
def test_agrees_with_pandas(cases: dict[str, tuple[list[float], float]]) -> None:
    result = over_solo({n: gaps for n, (gaps, _) in cases.items()}, {n: solo for n, (_, solo) in cases.items()})
    frame = pd.DataFrame([(name, gap, solo) for name, (gaps, solo) in cases.items() for gap in gaps])
    frame.columns = pd.Index(["stream", "gap", "solo"])
    for ours, rows in [(result.pooled, frame), *((result.streams[n], frame[frame["stream"] == n]) for n in cases)]:
        assert ours.gaps == len(rows)
        for name, times in {"over_2x": 2, "over_5x": 5, "over_10x": 10}.items():
            assert getattr(ours, name) == pytest.approx(rows["gap"].gt(times * rows["solo"]).mean())
        excess = (rows["gap"] - rows["solo"]).clip(lower=0).sum()
        assert ours.excess_s == pytest.approx(excess, abs=1e-9)
        assert ours.excess_per_1000_s == pytest.approx(excess / len(rows) * 1000, abs=1e-6)


def test_each_stream_is_held_against_its_own_solo() -> None:
    result = over_solo({"fast": array("d", [0.01, 0.05]), "slow": array("d", [0.1, 0.1])}, {"fast": 0.01, "slow": 0.1})
    fast = result.streams["fast"]
    assert (fast.gaps, fast.over_2x, fast.over_5x, fast.over_10x) == (2, 0.5, 0.0, 0.0)
    assert (fast.excess_s, fast.excess_per_1000_s) == pytest.approx((0.04, 20.0))
    assert result.streams["slow"].excess_s == 0.0
    assert result.pooled.over_2x == 0.25
    assert result.pooled.excess_s == pytest.approx(0.04)


@pytest.mark.parametrize("solo", [None, 0.0, float("nan")])
def test_without_a_solo_median_there_are_no_figures(solo: float | None) -> None:
    result = over_solo({"a": [1.0], "b": [1.0]}, {"a": solo, "b": 0.5})
    assert result.streams["a"] == Interference()
    assert result.pooled == result.streams["b"]
    assert over_solo({"a": [1.0]}, {}).pooled == Interference()


def test_without_gaps_there_are_no_figures() -> None:
    assert over_solo({"a": []}, {"a": 1.0}).pooled == Interference()
    assert over_solo({}, {}).pooled == Interference()
