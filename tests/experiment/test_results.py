"""Rows, objectives and background at equal P99, from trial records."""

from __future__ import annotations

import pytest

from dlfp_edge.experiment.agreement import agreement
from dlfp_edge.experiment.arms import EngineOpener, Named, with_solo
from dlfp_edge.experiment.remote_arms import EndpointOpener
from dlfp_edge.experiment.results import Row, equal_p99, rows
from dlfp_edge.experiment.workload import Workload, load_workload
from dlfp_edge.measure.slo import PRESETS, RELATIVE

from .simulated import settings, simulated
from .trials import request, trial

ASKED = load_workload("chat-ingest")
NAMES = ("lanes/dlfp", "shared/fcfs", "shared/fixed:8", "shared/fixed:32")
RUNTIME = simulated()
PEER = "http://127.0.0.1:1"
OURS: list[Named] = [(n, EngineOpener(RUNTIME, settings(n)), "shared/fixed:*" if "fixed" in n else None) for n in NAMES]
ARMS = with_solo([*OURS, (PEER, EndpointOpener(PEER, RUNTIME.tokenizer), None)], ASKED)
SOLO = [
    trial("lanes/solo", gap_s=0.010, background=None, isolated_tokens_per_s=400.0),
    trial("shared/solo", gap_s=0.010, background=None, isolated_tokens_per_s=500.0),
    trial(f"{PEER}/solo", gap_s=0.010, background=None, isolated_tokens_per_s=200.0),
]


def found(*records: object, workload: Workload = ASKED) -> dict[str, Row]:
    made = rows(ARMS, [*SOLO, *records], workload, "lanes/dlfp", "shared/fcfs")  # type: ignore[list-item]
    return {row.setting: row for row in made}


def test_a_row_pools_the_trials_that_count() -> None:
    row = found(
        trial("lanes/dlfp", 1, gap_s=0.02), trial("lanes/dlfp", 2, gap_s=0.04), trial("lanes/dlfp", 3, status="void")
    )["lanes/dlfp"]
    assert (row.trials, row.void, row.gaps) == (2, 1, 2000)
    assert row.itl.mean == pytest.approx(30.0)
    assert row.background_tokens_per_s == pytest.approx(100.0)


def test_gaps_are_held_against_solo() -> None:
    over = found(trial("lanes/dlfp", gap_s=0.025))["lanes/dlfp"].over_solo
    assert (over.over_2x, over.over_5x) == (1.0, 0.0)
    assert over.excess_per_1000_s == pytest.approx(15.0)


def test_background_of_other_kernels_is_normalised_by_what_they_read_alone() -> None:
    made = found(trial("lanes/dlfp"), trial("shared/fcfs", background=2000.0), trial(PEER, background=2000.0))
    assert made[PEER].prefill_ratio == pytest.approx(0.5)
    assert made[PEER].background_tokens_per_s == pytest.approx(200.0)
    assert made[PEER].background_normalised == pytest.approx(400.0)
    assert made["shared/fcfs"].prefill_ratio == pytest.approx(1.25)
    assert made["shared/fcfs"].background_normalised == pytest.approx(200.0)  # the candidate's own kernels
    assert made["lanes/dlfp"].background_normalised == pytest.approx(100.0)


def test_all_are_held_to_the_objectives_of_the_candidates_solo() -> None:
    slow = trial(f"{PEER}/solo", gap_s=0.1, background=None)
    made = found(trial("lanes/dlfp", gap_s=0.015, gaps=100), slow, trial(PEER, gap_s=0.15, gaps=100))
    assert made[PEER].slo == made["lanes/dlfp"].slo
    assert (made["lanes/dlfp"].slo_share, made[PEER].slo_share) == (1.0, 0.0)


def test_a_failed_request_misses_its_objectives_and_is_told_by_whose_fault() -> None:
    fine, lost = request("chat/0/0"), request("chat/0/1", [], complete=False, failed=True, failure="http", ttft_s=None)
    row = found(trial("lanes/dlfp", requests=[fine, lost]))["lanes/dlfp"]
    assert (row.http_failures, row.engine_failures) == (1, 0)
    assert row.slo_share == pytest.approx(0.5)
    assert row.slo is not None
    assert RELATIVE in row.slo


def test_a_cut_request_counts_only_where_it_was_late_already() -> None:
    young = request("chat/0/1", complete=False, cut=True, age_s=0.2, ttft_s=None)
    old = request("chat/0/2", complete=False, cut=True, age_s=60.0, ttft_s=None)
    row = found(trial("lanes/dlfp", requests=[request(), young, old]))["lanes/dlfp"]
    assert row.slo_share == pytest.approx(0.5)


def test_the_workloads_own_objectives_come_first() -> None:
    agent = load_workload("agent")
    assert agent.slo == PRESETS["agent"]
    own = ASKED.model_copy(update={"slo_table": agent.slo_table})
    assert "35 ms" in (found(trial("lanes/dlfp"), workload=own)["lanes/dlfp"].slo or "")


def test_a_paced_stream_is_judged_by_what_its_reader_saw() -> None:
    paced = request(gaps_s=[0.3] * 9, shown_s=[0.08] * 9, paced=True)
    row = found(trial("lanes/dlfp", requests=[paced]))["lanes/dlfp"]
    assert row.seen.p99 == pytest.approx(80.0)
    assert row.itl.p99 == pytest.approx(300.0)


def test_a_paced_stream_does_not_hide_one_that_is_not() -> None:
    paced = request(gaps_s=[0.3] * 9, shown_s=[0.08] * 9, paced=True)
    row = found(trial("lanes/dlfp", requests=[paced, request("agent/0/0", [5.0] * 9)]))["lanes/dlfp"]
    assert row.seen.max == pytest.approx(5000.0)
    assert row.shown.max == pytest.approx(80.0)


def test_shown_gaps_count_only_beside_background_work() -> None:
    paced = request(gaps_s=[0.3] * 2, shown_s=[0.08, 0.5], contended=[True, False], paced=True)
    assert found(trial("lanes/dlfp", requests=[paced]))["lanes/dlfp"].seen.max == pytest.approx(80.0)


def test_background_at_equal_p99_is_read_between_two_points() -> None:
    made = list(
        found(
            trial("lanes/dlfp", gap_s=0.02, background=1500.0),
            trial("shared/fixed:8", gap_s=0.01, background=500.0),
            trial("shared/fixed:32", gap_s=0.04, background=2500.0),
        ).values()
    )
    (equal,) = equal_p99(made, {"shared/fixed:*": NAMES[2:]}, "lanes/dlfp")
    assert equal.background == pytest.approx((50.0 + 250.0) / 2)  # halfway in log P99
    assert equal.ratio == pytest.approx(1.0)


def test_a_sweep_that_is_never_as_smooth_gives_no_figure() -> None:
    made = list(found(trial("lanes/dlfp", gap_s=0.005), trial("shared/fixed:8", gap_s=0.01)).values())
    (equal,) = equal_p99(made, {"shared/fixed:*": NAMES[2:]}, "lanes/dlfp")
    assert equal.background is None
    assert equal.reason == "its P99 is never below 10 ms"


def test_words_agree_as_far_as_both_answers_go() -> None:
    mine = [trial("a", requests=[request("chat/0/0", ids=[1, 2, 3, 4]), request("chat/0/1", ids=[5, 6])])]
    theirs = [trial("b", requests=[request("chat/0/0", ids=[1, 2, 9]), request("chat/0/1", ids=[5, 6, 7])])]
    seen = agreement(mine, theirs)
    assert seen is not None
    assert (seen.answers, seen.alike, seen.tokens, seen.same) == (2, 1, 5, 4)


def test_an_arm_against_itself_is_its_first_run_against_its_repeat() -> None:
    both = [trial("b"), trial("b", repeat=1), trial("b", 2)]
    seen = agreement(both, both)
    assert seen is not None
    assert (seen.answers, seen.share) == (1, 1.0)


def test_without_ids_there_is_no_agreement() -> None:
    assert agreement([trial("a", requests=[request(ids=None)])], [trial("b")]) is None
