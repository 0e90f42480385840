"""What may be claimed of a candidate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.experiment.gates import Gate
from dlfp_edge.experiment.record import TrialRecord
from dlfp_edge.experiment.verdict import Verdict, verdict

from .trials import request, trial

MINE = [trial("auto", seed, gap_s=0.02 + 0.0001 * seed, background=1000.0 + seed) for seed in (1, 2, 3)]
SLOWER = [trial("fcfs", seed, gap_s=0.05 + 0.0002 * seed, background=1000.0 + 2 * seed) for seed in (1, 2, 3)]


def judged(candidate: Sequence[TrialRecord], control: Sequence[TrialRecord], **how: Any) -> Verdict:
    usual: dict[str, Any] = {
        "slo": None,
        "ratios": {"auto": 1.0, "fcfs": 1.0},
        "gates": [],
        "quick": False,
        "exact": False,
        "harness": None,
    }
    return verdict("fcfs", candidate, control, **{**usual, **how})


def test_shorter_gaps_in_every_seed_are_better() -> None:
    found = judged(MINE, SLOWER)
    assert found.outcome == "better"
    change = next(change for change in found.changes if change.metric == "itl_p99")
    assert change.claim == 1
    assert change.mean == pytest.approx(59.7, abs=0.5)


def test_longer_gaps_are_worse() -> None:
    assert judged(SLOWER, MINE).outcome == "worse"


def test_shorter_gaps_for_less_background_are_a_trade_off() -> None:
    less = [trial("auto", seed, gap_s=0.02, background=500.0 + seed) for seed in (1, 2, 3)]
    assert judged(less, SLOWER).outcome == "trade-off"


def test_changes_either_way_claim_nothing() -> None:
    mixed = [trial("auto", seed, gap_s=gap_s) for seed, gap_s in ((1, 0.04), (2, 0.06), (3, 0.051))]
    found = judged(mixed, SLOWER)
    assert found.outcome == "no claim"
    assert next(change for change in found.changes if change.metric == "itl_p99").text.startswith("no claim")


@pytest.mark.parametrize(
    ("candidate", "how", "why"),
    [
        (MINE, {"quick": True}, "quick"),
        (MINE[:2], {}, "seeds: 2 of 3"),
        ([*MINE[:2], trial("auto", 3, gap_s=0.02, gaps=999)], {}, "999 of 1000"),
    ],
)
def test_too_little_to_go_by_is_reconnaissance(candidate: list[TrialRecord], how: dict[str, Any], why: str) -> None:
    found = judged(candidate, SLOWER, **how)
    assert found.outcome == "reconnaissance"
    assert any(why in reason for reason in found.why)
    assert found.changes


def test_trials_that_do_not_count_are_in_no_pair() -> None:
    void = trial("auto", 2, status="void", reason="does not add up")
    assert judged([MINE[0], void, MINE[2]], SLOWER).seeds == [1, 3]


@pytest.mark.parametrize("status", ["void", "failed"])
def test_a_candidate_whose_trials_fail_cannot_win_with_the_others(status: str) -> None:
    four = [*SLOWER, trial("fcfs", 4, gap_s=0.05)]
    assert judged([*MINE, trial("auto", 4, gap_s=0.021)], four).outcome == "better"
    found = judged([*MINE, trial("auto", 4, status=status, reason="it broke")], four)
    assert found.outcome == "no claim"
    assert any("seeds 4 do not count" in reason for reason in found.why)
    lost = [*SLOWER, trial("fcfs", 4, status=status, reason="it broke")]
    assert judged([*MINE, trial("auto", 4, gap_s=0.021)], lost).outcome == "better"


def test_a_background_that_starves_is_worse_however_short_the_gaps() -> None:
    starved = [trial("auto", seed, gap_s=0.02, background=0.0) for seed in (1, 2, 3)]
    found = judged(starved, SLOWER)
    assert found.outcome == "trade-off"
    assert next(change for change in found.changes if change.metric == "background").mean == pytest.approx(-100.0)


def test_background_is_compared_after_what_each_target_reads_alone() -> None:
    peer = [trial("fcfs", seed, gap_s=0.02 + 0.0001 * seed, background=600.0 + seed) for seed in (1, 2, 3)]
    raw, fair = judged(MINE, peer), judged(MINE, peer, ratios={"auto": 1.0, "fcfs": 0.6})
    assert raw.outcome == "better"
    assert next(change for change in fair.changes if change.metric == "background").mean == pytest.approx(0.0, abs=0.5)


def test_a_metric_that_a_pair_lacks_claims_nothing() -> None:
    unfinished = request(complete=False, cut=True, e2el_s=None, tpot_s=None, gaps_s=[0.05] * 1000)
    some = [SLOWER[0], trial("fcfs", 2, requests=[unfinished]), SLOWER[2]]
    change = next(change for change in judged(MINE, some).changes if change.metric == "e2el_p50")
    assert (change.claim, change.text) == (0, "no claim (2 of 3 pairs)")


def test_a_wait_for_a_first_token_that_the_end_cut_counts_so_far() -> None:
    waiting = request("chat/0/1", [], complete=False, cut=True, age_s=9.0, ttft_s=None)
    stalled = [t.model_copy(update={"requests": [*t.requests, waiting]}) for t in SLOWER]
    change = next(change for change in judged(MINE, stalled).changes if change.metric == "ttft_max")
    assert change.mean == pytest.approx(100 * (9.0 - 0.1) / 9.0)


def test_a_candidate_that_adds_a_failure_cannot_win() -> None:
    failing = MINE[1].model_copy(
        update={"requests": [*MINE[1].requests, request("chat/0/1", [], complete=False, failed=True, failure="http")]}
    )
    found = judged([MINE[0], failing, MINE[2]], SLOWER)
    assert found.outcome == "no claim"
    assert judged([MINE[0], failing, MINE[2]], MINE).outcome in ("no claim", "worse")
    assert any("failed requests" in reason for reason in found.why)
    assert judged(SLOWER, [MINE[0], failing, MINE[2]]).outcome == "worse"


def test_two_that_were_not_asked_the_same_are_void() -> None:
    other = SLOWER[1].model_copy(update={"requests": [SLOWER[1].requests[0].model_copy(update={"prompt": 8})]})
    found = judged(MINE, [SLOWER[0], other, SLOWER[2]])
    assert found.outcome == "void"
    assert "seed 2: the two were not asked the same" in found.why


def test_exact_kernels_must_give_the_same_words() -> None:
    other = SLOWER[1].model_copy(update={"requests": [SLOWER[1].requests[0].model_copy(update={"ids": [1] * 1001})]})
    assert judged(MINE, [SLOWER[0], other, SLOWER[2]], exact=True).outcome == "void"
    assert judged(MINE, SLOWER, exact=True).outcome == "better"
    assert judged(MINE, [SLOWER[0], other, SLOWER[2]]).outcome == "better"


def test_a_harness_that_cannot_tell_makes_everything_void() -> None:
    assert judged(MINE, SLOWER, harness="the cache did not help").outcome == "void"


def test_gates_must_all_be_kept_to_win() -> None:
    kept = Gate(metric="itl_p99", least_reduction=0.10)
    broken = Gate(metric="background", most_reduction=0.0)
    assert judged(MINE, SLOWER, gates=[kept]).outcome == "better"
    found = judged(MINE, SLOWER, gates=[kept, broken])
    assert [gate.passed for gate in found.gates] == [True, False]
    assert found.outcome == "no claim"


def test_a_gate_on_a_reduction_cannot_be_judged_by_one_pair() -> None:
    gate = Gate(metric="itl_p99", least_reduction=0.10)
    assert [result.passed for result in judged(MINE[:1], SLOWER, gates=[gate]).gates] == [None]


def test_nothing_to_compare_is_said_and_breaks_nothing() -> None:
    found = judged([], SLOWER)
    assert found.outcome == "reconnaissance"
    assert found.changes == []


@given(st.lists(st.floats(0.005, 1.0), min_size=3, max_size=6), st.lists(st.floats(0.005, 1.0), min_size=3, max_size=6))
def test_nobody_is_better_both_ways(ours: list[float], theirs: list[float]) -> None:
    mine = [trial("auto", seed, gap_s=gap, gaps=1000) for seed, gap in enumerate(ours)]
    other = [trial("fcfs", seed, gap_s=gap, gaps=1000) for seed, gap in enumerate(theirs)]
    assert not (judged(mine, other).outcome == "better" and judged(other, mine).outcome == "better")
