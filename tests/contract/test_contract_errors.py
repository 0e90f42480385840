"""What a runtime refuses, and what a refusal leaves alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from contract_harness import SEQUENCES, Bench, lane_spec, only_token, prompt

from dlfp_edge.runtime import PREVIOUS, LaneSpec, Output, Runtime, Sampling, Segment, Step

COUNT = 4


@pytest.fixture
def busy(bench: Bench) -> Bench:
    """A bench with 24 tokens in sequence 0."""
    bench.open(0)
    bench.open(1)
    bench.run(bench.segment(0, prompt(bench.runtime, 24), output=False))
    return bench


def refused(bench: Bench, *segments: Segment, threads: int = 1) -> None:
    """The step raises, and the lane goes on as if it had not been asked."""
    with pytest.raises(ValueError, match=r"\w"):
        bench.lane.submit(Step(segments, threads))
    assert bench.lane.kv_used() == sum(bench.held.values())
    assert bench.run(bench.segment(1, prompt(bench.runtime, 16))).error is None


def test_nothing_to_do(busy: Bench) -> None:
    refused(busy)
    refused(busy, Segment(0, 24, ()))
    refused(busy, busy.segment(0, [300]), threads=0)


@pytest.mark.parametrize("start", [0, 23, 25])
def test_a_start_that_is_not_the_end_of_the_sequence(busy: Bench, start: int) -> None:
    refused(busy, Segment(0, start, (300,)))


def test_a_token_outside_the_vocabulary(busy: Bench) -> None:
    for token in (busy.runtime.tokenizer.vocabulary, -2):
        refused(busy, busy.segment(0, [300, token]))


def test_a_token_that_is_not_on_the_device(busy: Bench) -> None:
    refused(busy, Segment(0, 24, (PREVIOUS,)))
    refused(busy, Segment(0, 24, (300, PREVIOUS)))


def test_two_segments_of_one_sequence(busy: Bench) -> None:
    refused(busy, busy.segment(0, [300], output=False), Segment(0, 25, (301,)))


def test_an_output_outside_its_segment(busy: Bench) -> None:
    for position in (23, 25):
        refused(busy, Segment(0, 24, (300,), {position: Output.TOKEN}))


def test_a_sequence_that_is_not_open(busy: Bench) -> None:
    refused(busy, Segment(2, 0, (300,)))
    refused(busy, Segment(SEQUENCES, 0, (300,)))


def test_a_step_that_is_too_large(busy: Bench) -> None:
    refused(busy, busy.segment(0, [300] * (busy.capabilities.largest_step + 1), output=False))


def test_more_steps_than_the_depth(busy: Bench) -> None:
    if busy.capabilities.decode_s == 0.0:
        pytest.skip("no step of this runtime is ever running")
    handles = [busy.submit(busy.segment(0, prompt(busy.runtime, 256), output=False))]
    for _ in range(busy.capabilities.depth - 1):
        handles.append(busy.submit(busy.segment(1, prompt(busy.runtime, 256), output=False)))
    with pytest.raises(ValueError, match=r"\w"):
        busy.lane.submit(Step((Segment(0, 280, (300,)),), 1))
    for handle in handles:
        assert busy.result(handle).error is None


def test_sequence_ids(bench: Bench) -> None:
    bench.open(0)
    for sequence in (0, SEQUENCES, -1):
        with pytest.raises(ValueError, match=r"\d"):
            bench.lane.open(sequence, Sampling())
    bench.lane.close(3)
    with pytest.raises(ValueError, match=r"\d"):
        bench.lane.truncate(0, 1)


def test_an_overflow_leaves_every_sequence_as_it_was(open_bench: Callable[[LaneSpec], Bench]) -> None:
    bench = open_bench(lane_spec(context=4 * 256))
    tokens = {sequence: prompt(bench.runtime, 100, sequence) for sequence in range(3)}
    expected = {sequence: bench.generate(sequence, tokens[sequence], COUNT) for sequence in range(3)}
    for sequence in range(3):
        bench.close(sequence)
        bench.open(sequence)
    first = {sequence: bench.prefill(sequence, tokens[sequence]) for sequence in range(3)}
    bench.open(3)
    result = bench.run(bench.segment(0, [first[0]]), bench.segment(3, prompt(bench.runtime, 4 * 256)))
    assert result.error
    assert not result.lost
    assert [outcome.consumed for outcome in result.segments] == [0, 0]
    assert bench.lane.kv_used() == 300
    for sequence in range(3):
        bench.same(bench.decode(sequence, first[sequence], COUNT), expected[sequence])


def test_an_error_in_one_lane_leaves_the_other_alone(runtime: Runtime, open_bench: Callable[[LaneSpec], Bench]) -> None:
    if runtime.capabilities.lanes < 2:
        pytest.skip("this runtime has one lane")
    good, bad = open_bench(lane_spec("good")), open_bench(lane_spec("bad", context=4 * 256))
    tokens = prompt(runtime, 48)
    expected = good.generate(0, tokens, COUNT)
    good.close(0)
    good.open(0)
    bad.open(0)
    ids = [good.prefill(0, tokens)]
    for _ in range(COUNT):
        handles = {
            "good": good.submit(good.segment(0, [ids[-1]])),
            "bad": bad.submit(bad.segment(0, prompt(runtime, 4 * 256 + 1))),
        }
        results = {}
        while len(results) < len(handles):
            results |= {result.lane: result for result in runtime.wait(None)}
        bad.check(results["bad"])
        good.check(results["good"])
        assert results["bad"].error
        assert results["good"].error is None
        ids.append(only_token(results["good"].segments[0]))
    good.same(ids, expected)
