"""Totals: what counts, when, and for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlfp_edge.measure.tally import RunTally, Tally
from dlfp_edge.measure.windows import SoloWindows, WindowPlan
from dlfp_edge.task import Class, Finish
from dlfp_edge.trace import SegmentTrace, StepRecord

from .records import record

WINDOWS = SoloWindows(contended_s=5.0, solo_s=5.0, settle_s=1.0)


def step(begin: float, end: float, tokens: int, task_class: Class = Class.BACKGROUND) -> StepRecord:
    """A step that prefilled `tokens` of one task."""
    return StepRecord(
        lane="background",
        segments=(SegmentTrace("b1", task_class.value, "prefill", 0, tokens, tokens),),
        protected=False,
        threads=2,
        budget=None,
        observed_s=None,
        target_s=None,
        value_after=None,
        update=False,
        reason=None,
        submitted=begin,
        completed=end,
        sampling_s=0.0,
        basis="synchronous return",
        interrupted=False,
        error=None,
        plan_s=0.0,
    )


def test_requests_by_how_they_ended() -> None:
    tally = Tally()
    for finish in (Finish.STOP, Finish.LENGTH, Finish.CANCELLED, Finish.DEADLINE, Finish.ERROR):
        tally.add(record([0.1], finish=finish))
    assert (tally.requests, tally.complete, tally.failed, tally.cancelled) == (5, 2, 2, 1)
    assert tally.missed_deadlines == 1
    assert (len(tally.gaps), len(tally.ttft), len(tally.e2el)) == (5, 5, 2)


def test_merging_pools_durations_and_adds_time() -> None:
    one, other = Tally(counted_s=2.0), Tally(counted_s=3.0)
    one.add(record([0.1, 0.2]))
    other.add(record([0.3]))
    one.merge(other)
    assert list(one.gaps) == pytest.approx([0.1, 0.2, 0.3])
    assert (one.requests, one.counted_s) == (2, 5.0)


def test_background_prefill_counts_in_contended_windows_only() -> None:
    run = RunTally(WindowPlan(0.0, WINDOWS))
    run.add_step(step(1.0, 2.0, 100))
    run.add_step(step(4.0, 6.0, 100))
    run.add_step(step(7.0, 8.0, 100))
    run.close(10.0)
    assert run.background.prompt_tokens == pytest.approx(150.0)
    assert (run.background.counted_s, run.foreground.counted_s) == (5.0, 10.0)


def test_foreground_prefill_counts_always() -> None:
    run = RunTally(WindowPlan(0.0, WINDOWS))
    run.add_step(step(7.0, 8.0, 100, Class.FOREGROUND))
    assert run.foreground.prompt_tokens == 100.0


def test_a_step_that_spans_the_end_counts_in_part() -> None:
    run = RunTally(WindowPlan(0.0))
    run.close(10.0)
    run.add_step(step(9.0, 13.0, 100))
    assert run.background.prompt_tokens == pytest.approx(25.0)


def test_background_tokens_in_a_solo_window_do_not_count() -> None:
    run = RunTally(WindowPlan(0.0, WINDOWS))
    run.add(record([2.0, 3.0], arrived=0.0, ttft_s=1.0, task_class=Class.BACKGROUND))
    assert run.background.output_tokens == 2.0


def test_solo_gaps_are_uncontended_and_inside_a_settled_window() -> None:
    run = RunTally(WindowPlan(0.0, WINDOWS))
    run.add(record([0.5, 0.25, 4.0], arrived=6.0, ttft_s=0.5, contended=[False, False, True, False]))
    assert list(run.solo.ttft) == pytest.approx([0.5])
    assert list(run.solo.gaps) == pytest.approx([0.5])


def test_gaps_are_held_against_the_target_in_force_for_each() -> None:
    run = RunTally(WindowPlan(0.0, None))
    contended = replace(step(0.0, 0.1, 1), observed_s=0.040, target_s=0.080)
    run.add_step(contended)
    run.add_step(replace(contended, target_s=0.020))
    run.add_step(replace(contended, target_s=None))
    assert list(run.foreground.over_target) == pytest.approx([0.5, 2.0])


def test_what_an_interrupted_step_took_belongs_to_the_gap_that_the_next_one_ends() -> None:
    run = RunTally(WindowPlan(0.0, None))
    contended = replace(step(0.0, 0.1, 1), observed_s=0.060, target_s=0.080)
    run.add_step(replace(contended, interrupted=True))
    run.add_step(contended)
    run.add_step(contended)
    assert list(run.foreground.over_target) == pytest.approx([1.5, 0.75])
