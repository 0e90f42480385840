"""Latencies of requests against the same figures from a pandas frame of tokens."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.measure.latency import (
    complete,
    contended_gaps_s,
    e2el_s,
    gaps_s,
    late_tokens,
    lateness_s,
    shown_gaps_s,
    tpot_s,
    ttft_s,
)
from dlfp_edge.measure.tally import Tally
from dlfp_edge.task import Finish, TaskRecord

from .records import record, records


@given(st.lists(records, min_size=1, max_size=10))
def test_pooled_gaps_agree_with_pandas(some: list[TaskRecord]) -> None:
    tally = Tally()
    for one in some:
        tally.add(one)
    frame = pd.DataFrame([{"request": i, "time": t} for i, one in enumerate(some) for t in one.token_times])
    expected = frame.groupby("request")["time"].diff().dropna()
    assert list(tally.gaps) == pytest.approx(expected.tolist(), abs=1e-9)
    assert len(tally.gaps) == sum(len(one.output_token_ids) - 1 for one in some)


@given(records)
def test_tpot_is_latency_less_ttft_over_the_gaps(one: TaskRecord) -> None:
    tpot, latency, first = tpot_s(one), e2el_s(one), ttft_s(one)
    if complete(one) and len(one.token_times) > 1:
        assert tpot is not None
        assert latency is not None
        assert first is not None
        assert tpot == pytest.approx((latency - first) / (len(one.token_times) - 1))
        assert tpot == pytest.approx(sum(gaps_s(one)) / len(gaps_s(one)), abs=1e-9)
    else:
        assert tpot is None


def test_ttft_and_latency_count_from_the_arrival() -> None:
    one = record([0.1, 0.2], arrived=3.0, ttft_s=0.5)
    assert ttft_s(one) == pytest.approx(0.5)
    assert e2el_s(one) == pytest.approx(0.8)


def test_a_request_cut_short_has_gaps_but_no_latency() -> None:
    one = record([0.1], finish=Finish.CANCELLED)
    assert len(gaps_s(one)) == 1
    assert e2el_s(one) is None


def test_a_request_without_tokens_has_no_latency() -> None:
    one = TaskRecord("r", record([]).task_class, "", 4, arrived=0.0, finished=1.0, finish=Finish.ERROR)
    assert (ttft_s(one), e2el_s(one), tpot_s(one), gaps_s(one)) == (None, None, None, [])


def test_contended_gaps_are_those_flagged() -> None:
    one = record([0.1, 0.2, 0.3], contended=[True, False, True, True])
    assert contended_gaps_s(one) == pytest.approx([0.2, 0.3])


def test_tokens_are_late_15_ms_after_they_were_due_however_long_their_gap_was() -> None:
    one = record([0.0] * 3, pace=10.0, shown_gaps_s=[0.1, 0.3, 0.116], late_s=[0.9, -1.0, 0.014, 0.016])
    assert shown_gaps_s(one) == pytest.approx([0.1, 0.3, 0.116])
    assert lateness_s(one) == pytest.approx([0.0, 0.014, 0.016]), "the first token is due when it is there"
    assert late_tokens(one) == 1


def test_a_stream_without_a_pace_has_no_shown_gaps() -> None:
    one = record([5.0])
    assert shown_gaps_s(one) == []
    assert late_tokens(one) == 0
