"""Solo windows: which moments count for what."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.measure.windows import SoloWindows, WindowPlan

PLAN = WindowPlan(start=100.0, windows=SoloWindows(contended_s=5.0, solo_s=2.5, settle_s=0.5))


@pytest.mark.parametrize(
    ("begin", "end", "solo"),
    [
        (105.5, 107.5, True),
        (105.4, 106.0, False),
        (107.0, 107.6, False),
        (101.0, 102.0, False),
        (113.0, 115.0, True),
        (106.0, 114.0, False),
    ],
)
def test_solo_is_wholly_inside_a_settled_window(begin: float, end: float, solo: bool) -> None:
    assert PLAN.solo(begin, end) is solo


@pytest.mark.parametrize(
    ("begin", "end", "seconds"),
    [(100.0, 105.0, 5.0), (104.0, 106.0, 1.0), (105.5, 107.0, 0.0), (100.0, 115.0, 10.0), (99.0, 101.0, 1.0)],
)
def test_contended_time(begin: float, end: float, seconds: float) -> None:
    assert PLAN.contended_s(begin, end) == pytest.approx(seconds)


@given(st.lists(st.floats(min_value=100.0, max_value=200.0), min_size=2, max_size=20))
def test_contended_time_adds_up(moments: list[float]) -> None:
    moments.sort()
    pieces = sum(PLAN.contended_s(a, b) for a, b in itertools.pairwise(moments))
    assert pieces == pytest.approx(PLAN.contended_s(moments[0], moments[-1]), abs=1e-6)


def test_boundaries_alternate() -> None:
    assert [PLAN.boundary(i) for i in range(4)] == [(105.0, True), (107.5, False), (112.5, True), (115.0, False)]
    assert PLAN.contended_at(104.9)
    assert not PLAN.contended_at(105.1)


def test_without_windows_all_time_is_one_kind() -> None:
    assert not WindowPlan(0.0).solo(1.0, 2.0)
    assert WindowPlan(0.0, alone=True).solo(1.0, 2.0)
    assert WindowPlan(0.0).contended_s(1.0, 3.0) == 2.0
