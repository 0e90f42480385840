"""How long things take on the simulated runtime. Time is virtual, so every figure is exact."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlfp_edge.clock import VirtualClock
from dlfp_edge.runtime import (
    Interruptible,
    Lane,
    LaneSpec,
    Output,
    Priority,
    Runtime,
    Sampling,
    Segment,
    Step,
    StepResult,
)
from dlfp_edge.runtimes.simulated import MODES, CostModel, SimulatedRuntime, Slowdown

PLAIN = CostModel(context_s=0.0, tile=1)
FRONT = LaneSpec("front", Priority.NORMAL, 4, 4096)
BACK = LaneSpec("back", Priority.LOWEST, 4, 4096)


def open_lane(runtime: Runtime, spec: LaneSpec = FRONT) -> Lane:
    lane = runtime.open_lane(spec)
    for sequence in range(spec.sequences):
        lane.open(sequence, Sampling())
    return lane


def chunk(sequence: int, count: int, start: int = 0) -> Segment:
    return Segment(sequence, start, (7,) * count, {start + count - 1: Output.TOKEN})


def run(runtime: Runtime, lane: Lane, *segments: Segment, threads: int = 2) -> StepResult:
    handle = lane.submit(Step(segments, threads))
    (result,) = runtime.wait(None)
    assert result.handle == handle
    return result


def duration(result: StepResult) -> float:
    return result.completed - result.submitted


@pytest.mark.parametrize(
    ("segments", "threads", "seconds"),
    [
        ([chunk(0, 1)], 1, 0.018),
        ([chunk(0, 1)], 2, 0.014),
        ([chunk(0, 1), chunk(1, 63)], 2, 0.014 + 63 * 0.0021),
        ([chunk(0, 1)], 8, 0.014),
    ],
)
def test_the_default_costs_are_those_of_the_embedded_model(
    segments: list[Segment], threads: int, seconds: float
) -> None:
    runtime = SimulatedRuntime(PLAIN)
    assert duration(run(runtime, open_lane(runtime), *segments, threads=threads)) == pytest.approx(seconds)


def test_what_it_says_it_can_do_is_what_it_does() -> None:
    capabilities = SimulatedRuntime(PLAIN).capabilities
    assert (capabilities.decode_threads, capabilities.decode_s) == (1, pytest.approx(0.018))
    assert capabilities.decode_s_by_threads == pytest.approx({1: 0.018, 2: 0.014})
    assert {threads: set(times) for threads, times in capabilities.decodes_s.items()} == {
        1: set(range(2, 9)),
        2: set(range(2, 9)),
    }
    assert capabilities.prefill_tokens_per_s == pytest.approx(512 / (0.0119 + 512 * 0.0021))


def test_a_total_at_a_multiple_of_the_tile_is_faster() -> None:
    runtime = SimulatedRuntime(replace(PLAIN, tile=16, tile_factor=0.85))
    lane = open_lane(runtime)
    on_tile = duration(run(runtime, lane, chunk(0, 1), chunk(1, 15)))
    beside = duration(run(runtime, lane, chunk(2, 1), chunk(3, 16)))
    assert on_tile == pytest.approx(0.85 * (0.014 + 15 * 0.0021))
    assert beside == pytest.approx(0.014 + 16 * 0.0021)


def test_context_costs_by_its_mean_over_the_chunk() -> None:
    runtime = SimulatedRuntime(CostModel(base_s=0, token_s=0, context_s=1.0, token_parallel=0, tile=1))
    lane = open_lane(runtime)
    assert duration(run(runtime, lane, chunk(0, 4))) == pytest.approx(1 + 2 + 3 + 4)
    assert duration(run(runtime, lane, chunk(0, 2, start=4))) == pytest.approx(5 + 6)


def test_two_lanes_slow_each_other_only_while_both_run() -> None:
    runtime = SimulatedRuntime(PLAIN)
    front, back = open_lane(runtime), open_lane(runtime, BACK)
    alone_s = PLAIN.pass_s(512, 2)
    back.submit(Step((chunk(0, 512),), 2))
    assert runtime.wait(0.1) == []
    decode = run(runtime, front, chunk(0, 1), threads=1)
    # Each has one core of two beside the other: a tenth of the bandwidth factor's reach is lost to both.
    assert duration(decode) == pytest.approx(0.018 * 1.1)
    (prefill,) = runtime.wait(None)
    done_beside = duration(decode) / (PLAIN.pass_s(512, 1) * 1.1)
    assert duration(prefill) == pytest.approx(alone_s * (1 - done_beside) + duration(decode))


def test_lowest_priority_gets_what_is_left() -> None:
    runtime = SimulatedRuntime(replace(PLAIN, bandwidth=0.0))
    front, back = open_lane(runtime), open_lane(runtime, BACK)
    back.submit(Step((chunk(0, 512),), 2))
    run(runtime, front, chunk(0, 100))
    used_s, front_used_s = back.cpu_s(), front.cpu_s()
    assert used_s is not None
    assert front_used_s is not None
    assert front_used_s == pytest.approx(2 * runtime.clock.now())
    assert used_s == pytest.approx(PLAIN.trickle * runtime.clock.now())


def test_equal_priorities_share() -> None:
    runtime = SimulatedRuntime(replace(PLAIN, bandwidth=0.0))
    lanes = [open_lane(runtime, replace(FRONT, name=name)) for name in ("one", "two")]
    for lane in lanes:
        lane.submit(Step((chunk(0, 64),), 2))
    results = runtime.wait(None)
    assert [result.lane for result in results] == ["one", "two"]
    assert duration(results[0]) == pytest.approx(PLAIN.pass_s(64, 1))


def test_cores_of_their_own_keep_lanes_apart() -> None:
    runtime = SimulatedRuntime(replace(PLAIN, bandwidth=0.0), cpus=(4, 5, 6, 7))
    front, back = open_lane(runtime), open_lane(runtime, BACK)
    back.submit(Step((chunk(0, 512),), 4))
    front.submit(Step((chunk(0, 100),), 4))
    runtime.wait(0.05)
    before = back.cpu_s()
    front.pin((4, 5))
    back.pin((6, 7))
    runtime.wait(0.06)
    after = back.cpu_s()
    assert before is not None
    assert after is not None
    assert before == pytest.approx(0.05 * PLAIN.trickle)
    assert after - before == pytest.approx(0.01 * 2)


def test_a_slow_down_stretches_only_what_falls_into_it() -> None:
    runtime = SimulatedRuntime(PLAIN, slowdowns=[Slowdown(0.1, 0.2, 4.0)])
    result = run(runtime, open_lane(runtime), chunk(0, 512))
    assert duration(result) == pytest.approx(PLAIN.pass_s(512, 2) + 0.1 * 3 / 4)


def test_noise_is_the_same_for_the_same_seed() -> None:
    def durations(seed: int) -> list[float]:
        runtime = SimulatedRuntime(PLAIN, noise=0.3, seed=seed)
        lane = open_lane(runtime)
        return [duration(run(runtime, lane, chunk(0, 1, start))) for start in range(20)]

    assert durations(1) == durations(1) != durations(2)
    assert len(set(durations(1))) == 20


def test_sampling_delays_the_tokens_not_the_completion() -> None:
    runtime = SimulatedRuntime(replace(PLAIN, sampling_s=0.001))
    result = run(runtime, open_lane(runtime), chunk(0, 1), chunk(1, 1))
    assert result.completed == pytest.approx(0.014 + 0.0021)
    assert result.sampling_s == pytest.approx(0.002)
    assert runtime.clock.now() == pytest.approx(result.completed + 0.002)


def test_an_interruption_takes_its_time() -> None:
    runtime = SimulatedRuntime(PLAIN)
    lane = open_lane(runtime)
    handle = lane.submit(Step((chunk(0, 1024),), 2))
    runtime.wait(1.5)
    lane.interrupt(handle)
    lane.interrupt(handle)
    (result,) = runtime.wait(None)
    assert result.interrupted
    assert result.completed == pytest.approx(1.502)
    assert result.segments[0].consumed == 512


def test_a_step_about_to_end_is_not_interrupted() -> None:
    runtime = SimulatedRuntime(PLAIN)
    lane = open_lane(runtime)
    handle = lane.submit(Step((chunk(0, 1),), 2))
    runtime.wait(0.013)
    lane.interrupt(handle)
    (result,) = runtime.wait(None)
    assert not result.interrupted
    assert result.completed == pytest.approx(0.014)


def test_one_after_another_decodes_first_each_at_its_own_time() -> None:
    runtime = SimulatedRuntime(PLAIN, "sequential")
    lane = open_lane(runtime)
    result = run(runtime, lane, chunk(0, 32), chunk(1, 1), chunk(2, 1))
    prefill, first, second = result.segments
    whole_s = 2 * PLAIN.pass_s(1, 2) + PLAIN.pass_s(32, 2)
    assert prefill.completed == result.completed == pytest.approx(whole_s)
    assert 0 < first.completed < second.completed < prefill.completed
    assert second.completed == pytest.approx(2 * first.completed)


def test_between_segments_the_one_that_runs_is_finished() -> None:
    runtime = SimulatedRuntime(PLAIN, "sequential")
    lane = open_lane(runtime)
    handle = lane.submit(Step((chunk(0, 32), chunk(1, 1), chunk(2, 1)), 2))
    runtime.wait(0.001)
    lane.interrupt(handle)
    (result,) = runtime.wait(None)
    assert result.interrupted
    assert [segment.consumed for segment in result.segments] == [0, 1, 0]
    assert list(result.segments[1].tokens) == [0]


def test_a_queue_of_two_runs_without_a_pause() -> None:
    runtime = SimulatedRuntime(PLAIN, "depth2")
    lane = open_lane(runtime)
    lane.submit(Step((chunk(0, 1),), 2))
    lane.submit(Step((chunk(1, 1),), 2))
    results = [runtime.wait(None)[0], runtime.wait(None)[0]]
    assert [result.submitted for result in results] == [0.0, 0.0]
    assert [result.completed for result in results] == pytest.approx([0.014, 0.028])


def test_a_queued_step_can_be_taken_back_before_it_runs() -> None:
    runtime = SimulatedRuntime(PLAIN, replace(MODES["depth2"], interruptible=Interruptible.NODES))
    lane = open_lane(runtime)
    lane.submit(Step((chunk(0, 1),), 2))
    lane.interrupt(lane.submit(Step((chunk(1, 1),), 2)))
    first, second = runtime.wait(None)
    assert (first.interrupted, second.interrupted) == (False, True)
    assert second.completed == first.completed
    assert second.segments[0].consumed == 0


def test_a_clock_moved_by_others_finds_the_past_as_it_was() -> None:
    clock = VirtualClock()
    runtime = SimulatedRuntime(PLAIN, clock=clock)
    lane = open_lane(runtime)
    lane.submit(Step((chunk(0, 1),), 2))
    clock.advance_to(5.0)
    lane.submit(Step((chunk(0, 1, start=1),), 2))
    late, then = runtime.wait(None), runtime.wait(None)
    assert late[0].completed == pytest.approx(0.014)
    assert then[0].submitted == 5.0
    assert then[0].completed == pytest.approx(5.014)


def test_nothing_takes_time_on_null() -> None:
    runtime = SimulatedRuntime(mode="null")
    run(runtime, open_lane(runtime), chunk(0, 1), chunk(1, 2000))
    assert runtime.clock.now() == 0.0
    assert MODES["null"].lanes == 2
