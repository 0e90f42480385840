"""A step may be stopped at any moment: what is reported as certain is, and the rest can be run again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from contract_harness import Bench, Case, lane_spec, prompt

from dlfp_edge.runtime import Interruptible, LaneSpec, Output, Priority, Runtime, Sampling, Segment, StepResult

COUNT = 3


class FourSequences:
    """Two sequences decode and two prefill, in one step that runs over several ubatches."""

    def __init__(self, bench: Bench, long: int, sampling: Sampling) -> None:
        self.bench = bench
        self.long = prompt(bench.runtime, long, 2)
        self.short = prompt(bench.runtime, 40, 3)
        self.sampling = sampling

    def submit(self) -> int:
        bench = self.bench
        for sequence in range(4):
            bench.open(sequence, self.sampling)
        first = {s: bench.prefill(s, prompt(bench.runtime, 24, s)) for s in (0, 1)}
        return bench.submit(
            bench.segment(0, [first[0]]),
            bench.segment(2, self.long),
            bench.segment(1, [first[1]]),
            bench.segment(3, self.short),
        )

    def finish(self, result: StepResult) -> dict[int, list[int]]:
        """Run what is left and decode on; the ids of every sequence from this step on."""
        ends = self.bench.resume(result)
        ids = {sequence: self.bench.decode(sequence, ends[sequence], COUNT) for sequence in range(4)}
        for sequence in range(4):
            self.bench.close(sequence)
        assert self.bench.lane.kv_used() == 0
        return ids


def stopped_after(bench: Bench, handle: int, delay_s: float) -> StepResult:
    """Interrupt a step when it has run for `delay_s`, if it is still running then."""
    for result in bench.runtime.wait(bench.runtime.clock.now() + delay_s):
        if result.handle == handle:
            bench.check(result)
            return result
    bench.lane.interrupt(handle)
    return bench.result(handle)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stopped_anywhere_and_resumed(runtime_factory: Case, bench: Bench, temperature: float) -> None:
    if bench.capabilities.interruptible is Interruptible.NO:
        pytest.skip("this runtime cannot be interrupted")
    if runtime_factory.real and temperature:
        pytest.skip("takes real time; sampling is the adapter's own test")
    length, moments = (1000, 4) if runtime_factory.real else (6 * bench.capabilities.ubatch, 60)
    work = FourSequences(bench, length, Sampling(temperature=temperature, seed=3, ignore_eos=True))
    whole = bench.result(work.submit())
    assert (whole.error, whole.interrupted) == (None, False)
    expected = work.finish(whole)
    takes_s = whole.completed - whole.submitted
    kept = set()
    for moment in range(moments):
        result = stopped_after(bench, work.submit(), takes_s * moment / moments)
        kept.add(result.segments[1].consumed)
        assert result.error is None
        assert not result.lost
        bench.same(work.finish(result), expected)
    if not runtime_factory.real and takes_s and bench.capabilities.interruptible is Interruptible.NODES:
        safe = {max(0, ubatch * bench.capabilities.ubatch - 1) for ubatch in range(7)}
        assert kept - {length} == safe, "each ubatch has been the last to survive"


def test_interrupted_at_once_nothing_is_lost(bench: Bench) -> None:
    tokens = prompt(bench.runtime, 64)
    expected = bench.generate(0, tokens, COUNT)
    bench.close(0)
    bench.open(0)
    handle = bench.submit(bench.segment(0, tokens))
    bench.lane.interrupt(handle)
    end = bench.resume(bench.result(handle))[0]
    bench.same(bench.decode(0, end, COUNT), expected)


def test_a_runtime_that_cannot_be_interrupted_goes_on(bench: Bench) -> None:
    if bench.capabilities.interruptible is not Interruptible.NO:
        pytest.skip("this runtime can be interrupted")
    bench.open(0)
    handle = bench.submit(bench.segment(0, prompt(bench.runtime, 64)))
    bench.lane.interrupt(handle)
    assert not bench.result(handle).interrupted


def test_an_interrupt_that_comes_too_late_stops_nothing(bench: Bench) -> None:
    bench.open(0)
    ended = bench.submit(bench.segment(0, prompt(bench.runtime, 8), output=False))
    bench.result(ended)
    bench.lane.interrupt(ended)
    following = bench.submit(bench.segment(0, prompt(bench.runtime, 64)))
    bench.lane.interrupt(ended)
    assert not bench.result(following).interrupted


def test_output_inside_a_stopped_chunk_is_not_lost(runtime_factory: Case, bench: Bench) -> None:
    """An output early in a segment holds back everything after it, unless it is delivered."""
    if bench.capabilities.interruptible is Interruptible.NO or runtime_factory.real:
        pytest.skip("the point at which it stops has to be known")
    tokens = tuple(prompt(bench.runtime, 4 * bench.capabilities.ubatch))
    early = bench.capabilities.ubatch // 2
    bench.open(0)
    segment = Segment(0, 0, tokens, {early: Output.TOKEN, len(tokens) - 1: Output.TOKEN})
    whole = bench.run(segment)
    bench.truncate(0, 0)
    handle = bench.submit(segment)
    result = stopped_after(bench, handle, (whole.completed - whole.submitted) * 0.6)
    if result.interrupted:
        assert result.segments[0].consumed == early
        assert not result.segments[0].tokens


def test_cancelled_half_way_and_the_id_used_again(bench: Bench) -> None:
    fresh = bench.generate(1, prompt(bench.runtime, 32, 1), COUNT)
    bench.open(0)
    handle = bench.submit(bench.segment(0, prompt(bench.runtime, 200, 2)))
    bench.lane.interrupt(handle)
    bench.result(handle)
    bench.close(0)
    bench.same(bench.generate(0, prompt(bench.runtime, 32, 1), COUNT), fresh)


def test_sequences_outside_a_running_step_may_come_and_go(bench: Bench) -> None:
    fresh = bench.generate(1, prompt(bench.runtime, 24, 1), COUNT)
    bench.open(0)
    handle = bench.submit(bench.segment(0, prompt(bench.runtime, 64, 2)))
    bench.close(1)
    bench.open(1)
    bench.open(2)
    bench.result(handle)
    bench.same(bench.decode(1, bench.prefill(1, prompt(bench.runtime, 24, 1)), COUNT), fresh)
    bench.same(bench.decode(2, bench.prefill(2, prompt(bench.runtime, 24, 1)), COUNT), fresh)


def test_a_sequence_inside_a_running_step_may_not(runtime_factory: Case, bench: Bench) -> None:
    if bench.capabilities.decode_s == 0.0:
        pytest.skip("no step of this runtime is ever running")
    bench.open(0)
    handle = bench.submit(bench.segment(0, prompt(bench.runtime, 256)))
    with pytest.raises(ValueError, match="sequence 0"):
        bench.lane.close(0)
    with pytest.raises(ValueError, match="sequence 0"):
        bench.lane.truncate(0, 0)
    bench.result(handle)


def test_lanes_run_at_the_same_time(runtime: Runtime, open_bench: Callable[[LaneSpec], Bench]) -> None:
    if runtime.capabilities.lanes < 2 or runtime.capabilities.decode_s == 0.0:
        pytest.skip("this runtime has one lane, or no step of it is ever running")
    front = open_bench(lane_spec("front"))
    back = open_bench(lane_spec("back", Priority.LOWEST))
    front.open(0)
    token = front.prefill(0, prompt(runtime, 16))
    back.open(0)
    long = back.submit(back.segment(0, prompt(runtime, 1024)))
    for _ in range(3):
        short = front.submit(front.segment(0, [token]), threads=1)
        (result,) = runtime.wait(None)
        assert (result.lane, result.handle) == ("front", short), "it overtakes the long step of the other lane"
        front.check(result)
    back.lane.interrupt(long)
    assert back.result(long).lane == "back"


def test_a_wake_ends_a_wait(bench: Bench) -> None:
    bench.runtime.wake()
    assert bench.runtime.wait(None) == []
    threading.Timer(0.05, bench.runtime.wake).start()
    assert bench.runtime.wait(None) == []
    until = bench.runtime.clock.now() + 0.05
    bench.runtime.wait(until)
    assert bench.runtime.clock.now() >= until, "one wake ends one wait"


def test_a_wait_ends_when_its_time_has_come(bench: Bench) -> None:
    until = bench.runtime.clock.now() + 0.05
    assert bench.runtime.wait(until) == []
    assert bench.runtime.clock.now() >= until
    assert bench.runtime.wait(until - 1.0) == []


def system_threads() -> int:
    """Threads of this process, those that Python does not know of too; 0 where the system does not say."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 0


def test_a_shut_lane_leaves_no_thread(runtime: Runtime) -> None:
    before, system_before = set(threading.enumerate()), system_threads()
    for busy in (False, True):
        bench = Bench(runtime, runtime.open_lane(lane_spec()))
        bench.open(0)
        bench.run(bench.segment(0, prompt(runtime, 16)))
        if busy:
            bench.submit(bench.segment(0, prompt(runtime, 512)))
        bench.lane.shut()
        bench.lane.shut()
        assert set(threading.enumerate()) <= before
    # The system may take a moment to reap what has ended.
    for _ in range(100):
        if system_threads() <= system_before:
            break
        time.sleep(0.05)
    assert system_threads() <= system_before
    runtime.wait(runtime.clock.now())
