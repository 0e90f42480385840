"""Paced answers as their readers see them, on virtual time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlfp_edge import Class, Edge, Engine, Finish, Sampling, Settings, Task, TaskSpec
from dlfp_edge.measure.latency import lateness_s
from dlfp_edge.playout import AHEAD_S, CALM_S
from dlfp_edge.runtimes.simulated import SimulatedRuntime
from dlfp_edge.runtimes.simulated.tokens import ByteTokenizer
from dlfp_edge.settings import Placement
from dlfp_edge.state import DECODE_SHARE
from dlfp_edge.task import TaskRecord

ENDLESS = Sampling(ignore_eos=True)
PACE = 12.5
GAP_S = 1 / PACE
PLACEMENTS = {"lanes": Placement.LANES, "batched": Placement.SHARED, "sequential": Placement.SHARED}


def engine_on(mode: str = "lanes", **more: Any) -> Engine:
    return Engine(SimulatedRuntime(mode=mode, noise=0.1), Settings(placement=PLACEMENTS[mode], **more))


def chat(max_tokens: int = 100, pace: float | None = PACE, **more: Any) -> TaskSpec:
    return TaskSpec(tuple(range(50)), max_tokens=max_tokens, sampling=ENDLESS, pace=pace, **more)


def document(tokens: int = 1500, number: int = 0) -> TaskSpec:
    """No two numbers have a beginning in common."""
    return TaskSpec((number, *(7,) * (tokens - 1)), Class.BACKGROUND, 4, ENDLESS)


def keep_busy(engine: Engine) -> None:
    for number in range(40):
        engine.submit(document(number=number))


def finish(engine: Engine) -> None:
    engine.run_until(lambda: False)
    engine.close()


def shown_gaps(task: Task, start: float = 0.0, end: float = 1e9) -> list[float]:
    """The gaps that began and ended in a stretch of time."""
    return [b - a for a, b in pairwise(task.record.shown_times) if start <= a and b <= end]


def consistent(record: TaskRecord) -> None:
    count = len(record.output_token_ids)
    assert count == len(record.token_times) == len(record.shown_times) == len(record.due_times)
    assert count == len(record.contended) <= len(record.pieces)


@pytest.mark.parametrize("mode", PLACEMENTS)
def test_the_first_token_is_shown_at_once_and_the_others_on_schedule(mode: str) -> None:
    engine = engine_on(mode)
    keep_busy(engine)
    task = engine.submit(chat())
    engine.run_until(lambda: task.done)
    record = task.record
    assert record.shown_times[0] == record.due_times[0] == record.token_times[0]
    assert shown_gaps(task) == pytest.approx([GAP_S] * 99)
    assert lateness_s(record) == [0.0] * 99
    assert record.lowest_pace is None
    engine.close()


@pytest.mark.parametrize("mode", PLACEMENTS)
def test_alone_tokens_are_shown_as_they_come_but_not_too_far_ahead(mode: str) -> None:
    engine = engine_on(mode)
    task = engine.submit(chat())
    finish(engine)
    record = task.record
    first = record.token_times[0]
    assert record.due_times == pytest.approx([first + index * GAP_S for index in range(100)])
    for there, due, shown in zip(record.token_times, record.due_times, record.shown_times, strict=True):
        assert shown == pytest.approx(max(there, due - AHEAD_S))
    assert record.shown_times[20] == record.token_times[20]
    assert record.shown_times[-1] == pytest.approx(first + 99 * GAP_S - AHEAD_S)


@pytest.mark.parametrize("mode", PLACEMENTS)
def test_when_background_work_comes_the_schedule_goes_on_from_what_was_shown(mode: str) -> None:
    engine = engine_on(mode)
    task = engine.submit(chat())
    came: list[float] = []
    engine.call_at(0.7, lambda: (came.append(engine.clock.now()), keep_busy(engine)))
    engine.run_until(lambda: len(task.record.shown_times) == 90)
    before = [shown for shown in task.record.shown_times if shown < came[0]]
    gaps = shown_gaps(task, before[-1])
    assert min(shown_gaps(task, 0.0, came[0])) < 0.5 * GAP_S
    assert gaps == pytest.approx([GAP_S] * len(gaps))
    assert max(lateness_s(task.record)) == 0.0
    engine.close()


def test_a_pause_of_the_background_does_not_end_contention_and_a_longer_one_does() -> None:
    engine = engine_on()
    task = engine.submit(chat(400))
    papers = [engine.submit(document(600))]
    engine.run_until(lambda: papers[0].done)
    ended = engine.clock.now()
    again = ended + 0.9 * CALM_S
    engine.call_at(again, lambda: papers.append(engine.submit(document(600))))
    engine.run_until(lambda: len(papers) > 1 and papers[1].done)
    ended = engine.clock.now()
    engine.run_until(lambda: task.done)
    assert shown_gaps(task, 0.0, ended + CALM_S) == pytest.approx([GAP_S] * len(shown_gaps(task, 0.0, ended + CALM_S)))
    after = shown_gaps(task, ended + CALM_S - GAP_S)
    ramp = after[: after.index(min(after))]
    assert len(ramp) > 10
    assert all(later <= earlier + 1e-9 for earlier, later in pairwise(ramp)), "the gaps shrink"
    assert all(later >= 0.85 * earlier for earlier, later in pairwise(ramp)), "one after another"
    assert task.record.shown_times[-1] < task.record.due_times[-1] - 0.9 * AHEAD_S
    engine.close()


def test_work_held_on_request_does_not_contend() -> None:
    engine = engine_on()
    engine.hold_background(True)
    engine.submit(document())
    task = engine.submit(chat(30))
    engine.run_until(lambda: task.done)
    assert task.record.shown_times == task.record.token_times[:26] + task.record.shown_times[26:]
    engine.close()


def test_an_answer_computed_early_gives_its_place_to_the_next() -> None:
    engine = engine_on(foreground_sequences=1)
    first, second = engine.submit(chat(40)), engine.submit(chat(5))
    finish(engine)
    assert first.record.finish is Finish.LENGTH
    assert first.record.finished is not None
    assert second.record.started is not None
    assert first.record.finished <= second.record.started < first.record.shown_times[-1] - 0.5
    assert shown_gaps(second)


def said(record: TaskRecord) -> str:
    return b"".join(map(ByteTokenizer().token_bytes, record.output_token_ids)).decode("utf-8", "replace")


@pytest.mark.parametrize("max_tokens", [2000, 60], ids=["while it decodes", "once it was computed"])
def test_a_cancelled_answer_ends_where_its_reader_is(max_tokens: int) -> None:
    engine = engine_on()
    keep_busy(engine)
    ended: list[TaskRecord] = []
    task = engine.submit(chat(max_tokens), on_finish=ended.append)
    engine.run_until(lambda: len(task.record.shown_times) == (30 if max_tokens == 2000 else 55))
    ahead = len(task.record.token_times) - len(task.record.shown_times)
    assert ahead > 3
    assert (task.record.finish is None) == (max_tokens == 2000)
    shown, text = list(task.record.shown_times), task.text
    task.cancel()
    engine.run_until(lambda: task.done)
    assert task.record.finish is Finish.CANCELLED
    assert task.record.shown_times == shown
    assert task.text == task.record.text == text == said(task.record)
    assert [token.id for token in task] == task.record.output_token_ids
    consistent(task.record)
    task.cancel()
    engine.close()
    assert ended == [task.record]


def test_text_held_back_is_not_that_of_tokens_that_were_dropped() -> None:
    engine = engine_on()
    keep_busy(engine)
    sampling = Sampling(logit_bias={ord("a"): 100.0}, ignore_eos=True)
    task = engine.submit(TaskSpec((1,), max_tokens=500, sampling=sampling, stop=("a" * 250,), pace=PACE))
    engine.run_until(lambda: len(task.record.shown_times) == 20)
    task.cancel()
    engine.run_until(lambda: task.done)
    assert len(task.record.output_token_ids) == 20
    assert task.text == "a" * 20
    engine.close()


@settings(max_examples=60, deadline=None)
@given(cancel_at=st.floats(0.0, 6.0), busy=st.booleans(), most=st.integers(1, 60))
def test_whenever_it_is_cancelled_the_record_is_what_was_shown(cancel_at: float, busy: bool, most: int) -> None:
    engine = engine_on()
    if busy:
        engine.submit(document(6000))
    told: list[int] = []
    task = engine.submit(chat(most, stop=("5 w6",)), on_token=lambda record, index: told.append(index))
    engine.call_at(cancel_at, task.cancel)
    finish(engine)
    record = task.record
    assert told == list(range(len(record.output_token_ids)))
    consistent(record)
    assert "".join(token.text for token in task) == task.text == record.text
    if record.finish is Finish.CANCELLED:
        assert record.finished is not None
        assert all(shown <= record.finished for shown in record.shown_times)


def test_a_deadline_or_a_close_shows_what_is_there() -> None:
    engine = engine_on()
    keep_busy(engine)
    late = engine.submit(chat(2000, deadline_s=3.0))
    left = engine.submit(chat(2000))
    engine.run_until(lambda: late.done)
    assert late.record.finish is Finish.DEADLINE
    assert late.record.shown_times[-1] == late.record.shown_times[-5], "the reserve came at once"
    computed = len(left.record.token_times)
    assert computed > len(left.record.shown_times)
    engine.close()
    assert left.record.finish is Finish.CANCELLED
    assert len(left.record.shown_times) == computed
    for task in (late, left):
        consistent(task.record)


def test_a_pace_faster_than_decoding_allows_is_lowered_and_said_once() -> None:
    engine = engine_on()
    keep_busy(engine)
    tasks = [engine.submit(chat(80, pace=500.0)), engine.submit(chat(80, pace=400.0))]
    engine.run_until(lambda: all(task.done for task in tasks))
    alone_s = engine._state.decode_times.alone_s(2)
    assert alone_s is not None
    for task in tasks:
        assert task.record.lowest_pace is not None
        assert task.record.lowest_pace <= 1.01 * DECODE_SHARE / engine._state.decode_times.alone_s(1)  # type: ignore[operator]
        assert task.record.lowest_pace == pytest.approx(DECODE_SHARE / alone_s, rel=0.3)
        assert min(shown_gaps(task)) > 0.9 * alone_s
    told = [message for message in engine.messages if "tokens/s" in message]
    assert len(told) == 1
    assert "500" in told[0]
    engine.close()


def test_an_unpaced_answer_has_no_schedule() -> None:
    engine = engine_on()
    engine.submit(document())
    task = engine.submit(chat(20, pace=None))
    engine.run_until(lambda: task.done)
    assert task.record.shown_times == task.record.token_times
    assert task.record.due_times == []
    engine.close()


def test_a_chat_is_paced_and_nothing_else_is_unless_asked() -> None:
    runtime = SimulatedRuntime()
    engine = Engine(runtime)
    with Edge(runtime, engine) as edge:
        asked = {
            "chat": edge.submit([1], pace="chat"),
            "one": edge.answers([1], 1, pace="chat")[0],
            "said nothing": edge.submit([1]),
            "pace of its own": edge.submit([1], pace=3.0),
            "several": edge.answers([1], 2, pace="chat")[1],
            "several at a pace": edge.answers([1], 2, pace=4.0)[1],
            "background": edge.submit([1], pace="chat", task_class="background"),
            "structured": edge.submit([1], pace="chat", json_schema={"type": "boolean"}),
        }
        found = {name: task.spec.pace for name, task in asked.items()}
    assert found == {
        "chat": 15.0,
        "one": 15.0,
        "said nothing": None,
        "pace of its own": 3.0,
        "several": None,
        "several at a pace": 4.0,
        "background": None,
        "structured": None,
    }
