"""What paired trials claim is what Student's t allows, and the paper's table comes out as printed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dlfp_edge.measure.paired import paired, reductions

values = st.integers(-(10**9), 10**9).map(lambda thousandths: thousandths / 1e3)
pairs = st.lists(st.tuples(values, values), min_size=2, max_size=12)


def test_the_papers_table() -> None:
    changes = reductions([122.22, 187.07, 200.36], [91.95, 130.85, 143.84])
    assert [round(change, 1) for change in changes] == [24.8, 30.1, 28.2]
    interval = paired(changes)
    assert interval.claims
    assert interval.text() == "27.7% (21.0 to 34.3)"


def test_an_interval_across_zero_claims_nothing() -> None:
    interval = paired([5.3, 8.2, 24.7])
    assert not interval.claims
    assert interval.text() == "no claim (12.7%, -13.3 to 38.7)"


@given(pairs)
def test_agrees_with_a_paired_t_test(trials: list[tuple[float, float]]) -> None:
    baseline, candidate = np.array(trials).T
    interval = paired(list(baseline - candidate))
    assert interval.low is not None
    assert interval.high is not None
    scale = max(1.0, float(np.abs(baseline - candidate).max()))
    if np.ptp(baseline - candidate) > 1e-6 * scale:  # scipy gives no interval to equal values
        low, high = stats.ttest_rel(baseline, candidate).confidence_interval()
        assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-6 * scale)
    assert interval.claims == (interval.low > 0 or interval.high < 0)


@given(st.lists(values, min_size=2, max_size=12, unique=True))
def test_agrees_with_the_t_distribution(changes: list[float]) -> None:
    interval = paired(changes)
    expected = stats.t.interval(0.95, len(changes) - 1, loc=np.mean(changes), scale=stats.sem(changes))
    assert (interval.low, interval.high) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert interval.mean == pytest.approx(np.mean(changes))


def test_one_pair_and_none_claim_nothing() -> None:
    assert not paired([50.0]).claims
    assert paired([50.0]).text() == "no claim (50.0%, one pair)"
    assert not paired([]).claims
    assert paired([]).text() == "no claim (no pair)"


def test_pairs_that_agree_to_the_bit_have_a_point_for_an_interval() -> None:
    assert paired([4.0, 4.0, 4.0]).text() == "4.0% (4.0 to 4.0)"
    assert paired([0.0, 0.0, 0.0]).text() == "no claim (0.0%, 0.0 to 0.0)"
    assert paired([-0.01, 0.01]).text().startswith("no claim (0.0%, -0.1")


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_change_must_be_a_number(wrong: float) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        paired([1.0, wrong])


def test_pairs_without_two_values_have_no_reduction() -> None:
    assert reductions([100.0, None, 0.0, 200.0], [50.0, 1.0, 1.0, None]) == [50.0]
    assert reductions([100.0], [0.0]) == [100.0]
    with pytest.raises(ValueError, match="zip"):
        reductions([1.0, 2.0], [1.0])
