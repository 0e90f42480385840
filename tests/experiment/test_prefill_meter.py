"""How much background prefill fell into a stretch of time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from dlfp_edge.experiment.prefill import ProgressMeter, StepMeter
from dlfp_edge.task import Class, TaskRecord

from ..measure.records import record
from ..measure.test_tally import step


@dataclass(slots=True)
class Told(TaskRecord):
    progress: list[tuple[float, int]] = field(default_factory=list)


def told(first: float | None, tokens: int, *progress: tuple[float, int], arrived: float = 0.0) -> Told:
    return Told(
        request_id="r",
        task_class=Class.BACKGROUND,
        label="b/0/0",
        prompt_tokens=tokens,
        arrived=arrived,
        token_times=[] if first is None else [first],
        progress=list(progress),
    )


def test_a_step_that_spans_an_end_counts_in_proportion() -> None:
    meter = StepMeter()
    for begin, end, tokens in ((0.0, 1.0, 100), (1.0, 3.0, 200)):
        meter.add(step(begin, end, tokens))
    assert meter.tokens(0.5, 2.0, []) == pytest.approx(150.0)


def test_it_is_settled_once_a_background_step_has_ended_after_the_end() -> None:
    meter = StepMeter()
    meter.add(step(0.0, 1.0, 100))
    assert not meter.settled(1.5, [])
    meter.add(step(1.0, 2.0, 0))
    assert meter.settled(1.5, [])


def test_foreground_prefill_is_not_counted() -> None:
    meter = StepMeter()
    theirs = step(0.0, 1.0, 100)
    meter.add(replace(theirs, segments=tuple(replace(s, task_class="foreground") for s in theirs.segments)))
    assert meter.tokens(0.0, 1.0, []) == 0


def test_a_prompt_without_progress_is_taken_to_come_evenly() -> None:
    assert ProgressMeter().tokens(1.0, 3.0, [told(4.0, 400)]) == pytest.approx(200.0)


def test_progress_says_where_the_tokens_were() -> None:
    record_ = told(4.0, 400, (3.0, 40), (3.5, 300))
    assert ProgressMeter().tokens(0.0, 3.0, [record_]) == pytest.approx(40.0)
    assert ProgressMeter().tokens(3.0, 4.0, [record_]) == pytest.approx(360.0)


def test_an_unfinished_prompt_counts_as_far_as_it_is_known() -> None:
    assert ProgressMeter().tokens(0.0, 9.0, [told(None, 400, (2.0, 250))]) == pytest.approx(250.0)
    assert ProgressMeter().tokens(0.0, 9.0, [told(None, 400)]) == 0


def test_the_foreground_is_left_out() -> None:
    assert ProgressMeter().tokens(0.0, 99.0, [record([0.1] * 4)]) == 0


def test_settled_once_every_live_prompt_is_known_beyond_the_end() -> None:
    meter = ProgressMeter()
    assert not meter.settled(3.0, [told(None, 400, (2.0, 250))])
    assert meter.settled(3.0, [told(None, 400, (2.0, 250), (3.5, 300))])
    assert meter.settled(3.0, [told(3.2, 400), told(None, 10, arrived=3.1)])
