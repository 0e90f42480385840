"""Steps of one lane: what is taken, what is refused, what an interruption leaves."""

from __future__ import annotations

import time

import pytest
from llama_harness import OpenLane, await_result, next_token, run_step, segment

from dlfp_edge.runtime import Lane, Output, Priority, Runtime, Sampling, Segment, Step


@pytest.fixture
def lane(tiny_runtime: Runtime, open_lane: OpenLane) -> Lane:
    opened = open_lane(tiny_runtime, sequences=4, context=1024)
    for sequence in range(4):
        opened.open(sequence, Sampling())
    return opened


def test_a_step_returns_a_token_for_each_output(tiny_runtime: Runtime, lane: Lane) -> None:
    wanted = Segment(0, 0, (1, 2, 3, 4), {1: Output.TOKEN, 3: Output.TOKEN})
    result = run_step(tiny_runtime, lane, wanted, segment(1, 0, [5], wanted=False))
    assert [s.consumed for s in result.segments] == [4, 1]
    assert set(result.segments[0].tokens) == {1, 3}
    assert not result.segments[1].tokens
    assert lane.kv_used() == 5
    assert result.submitted <= result.completed <= tiny_runtime.clock.now()
    assert not result.interrupted
    assert result.error is None


@pytest.mark.parametrize(
    "step",
    [
        Step((), 1),
        Step((segment(0, 0, [1]),), 0),
        Step((segment(0, 1, [1]),), 1),
        Step((segment(0, 0, []),), 1),
        Step((segment(0, 0, [4096]),), 1),
        Step((segment(0, 0, [-1]),), 1),
        Step((segment(9, 0, [1]),), 1),
        Step((segment(0, 0, [1]), segment(0, 0, [1])), 1),
        Step((Segment(0, 0, (1, 2), {2: Output.TOKEN}),), 1),
        Step((segment(0, 0, [1] * 2049),), 1),
        Step((Segment(0, 0, (1,) * 100, dict.fromkeys(range(100), Output.TOKEN)),), 1),
    ],
)
def test_steps_that_break_the_port_are_refused_at_once(lane: Lane, step: Step) -> None:
    with pytest.raises(ValueError, match=r"."):
        lane.submit(step)
    assert lane.kv_used() == 0


def test_one_step_at_a_time(tiny_runtime: Runtime, lane: Lane) -> None:
    lane.submit(Step((segment(0, 0, [1] * 512),), 1))
    with pytest.raises(ValueError, match="in flight"):
        lane.submit(Step((segment(1, 0, [1]),), 1))
    await_result(tiny_runtime, lane)


def test_what_does_not_fit_the_cache_changes_nothing(tiny_runtime: Runtime, lane: Lane) -> None:
    run_step(tiny_runtime, lane, segment(0, 0, [1] * 600))
    result = run_step(tiny_runtime, lane, segment(0, 600, [2]), segment(1, 0, [1] * 600))
    assert result.error is not None
    assert [s.consumed for s in result.segments] == [0, 0]
    assert lane.kv_used() == 600
    assert run_step(tiny_runtime, lane, segment(0, 600, [2])).error is None


def test_forked_cells_count_once_and_outlive_their_source(tiny_runtime: Runtime, lane: Lane) -> None:
    run_step(tiny_runtime, lane, segment(0, 0, range(1, 101)))
    lane.fork(0, 1, 60)
    assert lane.kv_used() == 100
    lane.truncate(0, 40)
    run_step(tiny_runtime, lane, segment(0, 40, [7] * 10), segment(1, 60, [8] * 5))
    assert lane.kv_used() == 75
    lane.close(0)
    assert lane.kv_used() == 65


def test_a_forked_sequence_goes_on_like_its_source(tiny_runtime: Runtime, lane: Lane) -> None:
    prompt = list(range(1, 65))
    run_step(tiny_runtime, lane, segment(0, 0, prompt[:32], wanted=False))
    lane.fork(0, 1, 32)
    result = run_step(tiny_runtime, lane, segment(0, 32, prompt[32:]), segment(1, 32, prompt[32:]))
    assert next_token(result, 0) == next_token(result, 1)


def test_changes_asked_for_during_a_step_wait_for_it(tiny_runtime: Runtime, lane: Lane) -> None:
    run_step(tiny_runtime, lane, segment(1, 0, [1] * 50))
    lane.submit(Step((segment(0, 0, [1] * 600),), 1))
    lane.close(1)
    lane.open(1, Sampling())
    with pytest.raises(ValueError, match="in flight"):
        lane.truncate(0, 0)
    await_result(tiny_runtime, lane)
    assert lane.kv_used() == 600
    assert run_step(tiny_runtime, lane, segment(1, 0, [3] * 20)).error is None


def test_wake_ends_a_wait(tiny_runtime: Runtime) -> None:
    tiny_runtime.wake()
    assert tiny_runtime.wait(None) == []


def test_wait_ends_at_its_time(tiny_runtime: Runtime) -> None:
    until = tiny_runtime.clock.now() + 0.02
    assert tiny_runtime.wait(until) == []
    assert tiny_runtime.clock.now() >= until


@pytest.mark.parametrize("priority", list(Priority))
def test_an_interrupted_step_keeps_whole_ubatches(runtime: Runtime, open_lane: OpenLane, priority: Priority) -> None:
    lane = open_lane(runtime, sequences=1, context=2048, priority=priority)
    lane.open(0, Sampling())
    handle = lane.submit(Step((segment(0, 0, [5] * 2000),), 2))
    time.sleep(0.05)
    lane.interrupt(handle)
    result = await_result(runtime, lane)
    assert result.interrupted
    assert result.error is None
    assert result.segments[0].consumed in (0, 512, 1024, 1536)
    assert lane.kv_used() == result.segments[0].consumed
    assert not result.segments[0].tokens
    lane.interrupt(handle)  # it has ended: nothing happens
    if priority is Priority.NORMAL:  # at idle priority a busy machine could keep it for minutes
        assert next_token(run_step(runtime, lane, segment(0, lane.kv_used(), [5]))) >= 0


def test_an_interrupt_before_the_start_runs_nothing(tiny_runtime: Runtime, lane: Lane) -> None:
    for _ in range(20):
        handle = lane.submit(Step((segment(0, 0, [1] * 900),), 1))
        lane.interrupt(handle)
        result = await_result(tiny_runtime, lane)
        consumed = result.segments[0].consumed
        assert result.interrupted == (consumed < 900)
        assert lane.kv_used() == consumed
        lane.truncate(0, 0)
