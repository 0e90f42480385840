"""Failures that are injected, refusals, and how a simulated runtime is loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlfp_edge.errors import UsageError
from dlfp_edge.runtime import (
    PREVIOUS,
    LaneSpec,
    LoadOptions,
    Output,
    Priority,
    Sampling,
    Segment,
    Step,
    StepResult,
)
from dlfp_edge.runtimes.simulated import MODES, SimulatedLane, SimulatedRuntime, provider

SPEC = LaneSpec("lane", Priority.NORMAL, 4, 256)


def two_sequences(runtime: SimulatedRuntime) -> SimulatedLane:
    lane = runtime.open_lane(SPEC)
    lane.open(0, Sampling())
    lane.open(1, Sampling())
    return lane


def step(*starts: int) -> Step:
    """One token for each sequence, at these starts."""
    return Step(tuple(Segment(s, start, (7,), {start: Output.TOKEN}) for s, start in enumerate(starts)), 1)


def run(runtime: SimulatedRuntime, lane: SimulatedLane, asked: Step) -> StepResult:
    lane.submit(asked)
    (result,) = runtime.wait(None)
    return result


def test_a_failed_segment_leaves_the_others_intact() -> None:
    runtime = SimulatedRuntime(mode="batched", fail_steps=[1])
    lane = two_sequences(runtime)
    assert run(runtime, lane, step(0, 0)).error is None
    result = run(runtime, lane, step(1, 1))
    assert (result.error, result.lost) == (None, ())
    assert [segment.error for segment in result.segments] == [None, "injected failure"]
    assert [segment.consumed for segment in result.segments] == [1, 0]
    assert [lane.kv.tokens(sequence) for sequence in (0, 1)] == [(7, 7), (7,)]
    again = run(runtime, lane, step(2, 1))
    assert list(again.segments[1].tokens.values()) == list(result.segments[0].tokens.values())


def test_a_fragile_runtime_loses_the_sequences_of_a_failed_step() -> None:
    runtime = SimulatedRuntime(mode="fragile", fail_steps=[1])
    lane = two_sequences(runtime)
    first = run(runtime, lane, step(0, 0))
    result = run(runtime, lane, step(1))
    assert result.error
    assert result.lost == (0,)
    assert lane.kv_used() == 1
    again = run(runtime, lane, step(0))
    assert again.segments[0].tokens == first.segments[0].tokens


def test_what_follows_a_failed_step_on_the_device_does_not_run() -> None:
    runtime = SimulatedRuntime(mode="depth2", fail_steps=[0])
    lane = two_sequences(runtime)
    lane.submit(step(0, 0))
    lane.submit(Step((Segment(1, 1, (PREVIOUS,), {1: Output.TOKEN}),), 1))
    failed, following = runtime.wait(None)
    assert failed.segments[1].error
    assert following.interrupted
    assert following.segments[0].consumed == 0
    assert lane.kv_used() == 1


def test_a_token_that_nobody_samples_cannot_be_continued_with() -> None:
    runtime = SimulatedRuntime(mode="depth2")
    lane = two_sequences(runtime)
    lane.submit(Step((Segment(0, 0, (7,)),), 1))
    with pytest.raises(ValueError, match="no token on the device"):
        lane.submit(Step((Segment(0, 1, (PREVIOUS,)),), 1))


def test_generation_ends_by_chance_unless_that_is_forbidden() -> None:
    runtime = SimulatedRuntime(end_probability=1.0)
    lane = runtime.open_lane(SPEC)
    lane.open(0, Sampling())
    lane.open(1, Sampling(ignore_eos=True))
    ends = [runtime.tokenizer.is_end(segment.tokens[0]) for segment in run(runtime, lane, step(0, 0)).segments]
    assert ends == [True, False]


def test_a_chunk_shorter_than_the_least_is_refused_but_a_short_prompt_is_not() -> None:
    runtime = SimulatedRuntime(mode=replace(MODES["batched"], min_chunk=8))
    lane = two_sequences(runtime)
    assert run(runtime, lane, Step((Segment(0, 0, (7,) * 5),), 1)).error is None
    with pytest.raises(ValueError, match="shorter than 8"):
        lane.submit(Step((Segment(0, 5, (7,) * 7),), 1))
    assert run(runtime, lane, Step((Segment(0, 5, (7,)),), 1)).error is None


def test_lanes_and_their_size_have_a_limit() -> None:
    runtime = SimulatedRuntime(mode="batched")
    lane = runtime.open_lane(SPEC)
    with pytest.raises(UsageError, match="'more' cannot be opened beside"):
        runtime.open_lane(LaneSpec("more", Priority.NORMAL, 1, 1))
    lane.shut()
    with pytest.raises(ValueError, match="shut"):
        lane.submit(step(0))
    with pytest.raises(UsageError, match="asks for 65 sequences"):
        runtime.open_lane(LaneSpec("wide", Priority.NORMAL, 65, 1))
    runtime.open_lane(SPEC)
    runtime.close()


def load(**options: str) -> SimulatedRuntime:
    runtime = provider.load(LoadOptions(None, (0, 1, 2, 3), 3, options=options))
    assert isinstance(runtime, SimulatedRuntime)
    return runtime


def test_options_choose_the_mode_and_the_costs() -> None:
    runtime = load(mode="sequential", base_s="0.5", tile="8", noise="0.1")
    described = runtime.describe()
    assert not runtime.capabilities.batched
    assert runtime.capabilities.tile == 8
    assert runtime.capabilities.prefill_threads == 3
    assert (described["mode"], described["cost"]["base_s"], described["noise"]) == ("sequential", 0.5, 0.1)
    assert load(mode="null").capabilities.decode_s == 0.0


def test_options_can_ask_for_failures() -> None:
    runtime = load(mode="batched", fail_steps="0,2")
    lane = two_sequences(runtime)
    starts = (0, 0, 1)
    assert [run(runtime, lane, step(start)).segments[0].error is None for start in starts] == [False, True, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mod": "null"}, "did you mean 'mode'"),
        ({"mode": "fast"}, "its modes are lanes"),
        ({"base_s": "much"}, "'base_s' .* is no number"),
        ({"base_s": "-1"}, "negative"),
        ({"fail_steps": "1,x"}, "'fail_steps'"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(**options)
