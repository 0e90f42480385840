"""Who was answered well enough: each objective alone, failures, and pandas on random records."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.measure.latency import e2el_s, tpot_s, ttft_s
from dlfp_edge.measure.slo import PRESETS, RELATIVE, Attainment, Slo, attainment, relative_slo
from dlfp_edge.task import Finish, TaskRecord

from .records import record, records

AGENT = PRESETS["agent"]
seconds = st.floats(min_value=0.0, max_value=150.0)


def test_the_papers_agent() -> None:
    assert (AGENT.ttft_s, AGENT.itl_s, AGENT.e2el_s) == (5.0, 0.035, 14.0)


def met(slo: Slo, asked: TaskRecord) -> bool:
    return slo.met(ttft_s(asked), tpot_s(asked), e2el_s(asked))


@pytest.mark.parametrize(
    ("asked", "meets"),
    [
        (record([0.03] * 255, ttft_s=4.9), True),
        (record([0.03] * 255, ttft_s=5.1), False),
        (record([0.036] * 100, ttft_s=1.0), False),
        (record([0.034] * 300, ttft_s=4.9), False),
        (record([1.0, *[0.001] * 100], ttft_s=1.0), True),
        (record([], ttft_s=1.0), True),
    ],
    ids=["all met", "first token late", "mean gap long", "whole answer late", "one long gap", "one token"],
)
def test_each_objective_alone_decides(asked: TaskRecord, meets: bool) -> None:
    assert met(AGENT, asked) is meets


@pytest.mark.parametrize("finish", [Finish.ERROR, Finish.DEADLINE])
def test_an_answer_that_is_not_whole_is_a_miss_however_fast_it_was(finish: Finish) -> None:
    assert not met(AGENT, record([0.01] * 3, finish=finish))


def test_what_is_not_known_is_neither_met_nor_missed() -> None:
    result = attainment([True, None, False, True])
    assert (result.met, result.requests, result.share) == (2, 3, pytest.approx(2 / 3))


@given(st.lists(records, max_size=30), seconds, seconds, seconds)
def test_agrees_with_pandas(some: list[TaskRecord], ttft: float, itl: float, e2el: float) -> None:
    slo = Slo(ttft, itl, e2el, "test")
    result = attainment(None if one.finish is Finish.CANCELLED else met(slo, one) for one in some)
    frame = pd.DataFrame(
        {
            "ttft": [one.token_times[0] - one.arrived for one in some],
            "itl": [float(np.diff(one.token_times).sum()) / max(1, len(one.token_times) - 1) for one in some],
            "e2el": [one.token_times[-1] - one.arrived for one in some],
            "finish": [one.finish.value for one in some if one.finish],
        }
    )
    counted = frame[frame["finish"] != "cancelled"]
    near = [(abs(counted[name] - limit) < 1e-9).any() for name, limit in zip(counted, (ttft, itl, e2el), strict=False)]
    whole = (counted["ttft"] <= ttft) & (counted["itl"] <= itl) & (counted["e2el"] <= e2el)
    whole &= counted["finish"].isin(["stop", "length"])
    assert result.requests == len(counted)
    if not any(near):  # a mean summed in another order may fall on the other side of the limit
        assert result.met == whole.sum()
        assert result.share == (whole.mean() if len(counted) else None)
        assert result.goodput(60.0) == (whole.sum() / 60.0 if len(counted) else None)


def test_goodput_counts_what_was_met_per_second() -> None:
    assert Attainment(met=30, requests=100).goodput(60.0) == pytest.approx(0.5)
    assert Attainment(met=0, requests=0).share is None
    assert Attainment(met=0, requests=0).goodput(60.0) is None
    assert Attainment(met=1, requests=1).goodput(0.0) is None


@given(st.floats(0.0, 10.0), st.floats(0.001, 1.0), st.integers(1, 50))
def test_objectives_from_solo_are_twice_it(ttft_s: float, gap_s: float, tokens: int) -> None:
    slo = relative_slo(solo_ttft_s=ttft_s, solo_gap_s=gap_s, max_tokens=tokens)
    assert slo.source == RELATIVE
    assert slo.ttft_s == pytest.approx(2 * ttft_s + 0.25)
    assert slo.itl_s == pytest.approx(2 * gap_s)
    assert met(slo, record([gap_s] * (tokens - 1), ttft_s=ttft_s))
    assert not met(slo, record([gap_s] * (tokens - 1), ttft_s=2 * ttft_s + 0.26))
    if tokens > 1:
        assert not met(slo, record([2.1 * gap_s] * (tokens - 1), ttft_s=ttft_s))
