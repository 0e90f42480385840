"""Rows of a comparison: shares and ratios."""

from __future__ import annotations

import pytest

from dlfp_edge.measure.comparison import Pool, rows
from dlfp_edge.measure.tally import RunTally
from dlfp_edge.measure.windows import WindowPlan

from .records import record
from .test_tally import step


def pool(gap_s: float, prefilled: int, **of_record: float) -> Pool:
    run = RunTally(WindowPlan(0.0))
    run.add(record([gap_s] * 10, **of_record))  # type: ignore[arg-type]
    run.add_step(step(1.0, 2.0, prefilled))
    run.close(10.0)
    result = Pool()
    result.add(run, 0.04)
    return result


POOLS = {"solo": pool(0.01, 0), "shared/unlimited": pool(0.1, 1000), "lanes": pool(0.02, 600, ttft_s=0.7)}
SOLO_OF = {"solo": "solo", "shared/unlimited": "solo", "lanes": "solo"}


def test_background_is_a_share_of_the_baseline() -> None:
    by_name = {row.setting: row for row in rows(POOLS, SOLO_OF, "shared/unlimited")}
    assert by_name["shared/unlimited"].background_share == pytest.approx(1.0)
    assert by_name["lanes"].background_share == pytest.approx(0.6)
    assert by_name["lanes"].background_tokens_per_s == pytest.approx(60.0)
    assert by_name["solo"].background_tokens_per_s is None


def test_the_foreground_is_compared_with_solo() -> None:
    lanes = rows(POOLS, SOLO_OF, "shared/unlimited")[2]
    assert lanes.p99_over_solo == pytest.approx(2.0)
    assert lanes.max_over_solo == pytest.approx(2.0)
    assert lanes.ttft_over_solo == pytest.approx(200.0)
    assert lanes.target == pytest.approx(40.0)


def test_without_the_baseline_there_is_no_share() -> None:
    assert rows(POOLS, SOLO_OF, "none")[2].background_share is None


def test_a_paced_stream_is_compared_by_what_its_reader_sees() -> None:
    paced = pool(0.3, 10, pace=10.0)
    paced.foreground.shown = type(paced.foreground.shown)("d", [0.1] * 10)
    row = rows({"solo": POOLS["solo"], "paced": paced}, {"solo": "solo", "paced": "solo"}, "paced")[1]
    assert row.p99_over_solo == pytest.approx(10.0)
    assert row.itl_p99 == pytest.approx(300.0)
