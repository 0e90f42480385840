"""Steps in short calls: how they are cut, how long they come to be, and that a wish to stop is heard between them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_harness import OpenLane, await_result, generate, load_options, run_step, segment

from dlfp_edge.runtime import Interruptible, Output, Runtime, Sampling, Segment, Step
from dlfp_edge.runtimes.llama_cpp import library, provider
from dlfp_edge.runtimes.llama_cpp.calls import CALL_S, CallSize, split_off
from dlfp_edge.runtimes.llama_cpp.context import Context


@pytest.fixture(scope="module")
def as_on_a_gpu() -> Iterator[Runtime]:
    """The embedded model, loaded as for a GPU; this build has none, so that the layers stay on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library.library(), "llama_supports_gpu_offload", lambda: True)
        runtime = provider.load(load_options(gpu_layers="all"))
    yield runtime
    runtime.close()


@given(
    segments=st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 300), st.booleans()), min_size=1, max_size=9),
    sizes=st.lists(st.integers(1, 600), min_size=1, max_size=5),
)
def test_calls_are_the_step(segments: list[tuple[int, int, bool]], sizes: list[int]) -> None:
    step = Step(
        tuple(
            Segment(number, start, tuple(range(count)), {start: Output.TOKEN} if wanted else {})
            for number, (start, count, wanted) in enumerate(segments)
        ),
        2,
    )
    tokens: dict[int, list[int]] = {segment.sequence: [] for segment in step.segments}
    outputs = {segment.sequence: dict[int, Output]() for segment in step.segments}
    rest: Step | None = step
    calls = 0
    while rest is not None:
        size = sizes[calls % len(sizes)]
        call, rest = split_off(rest, size)
        calls += 1
        assert 0 < call.total_tokens <= size
        for part in call.segments:
            whole = step.segments[part.sequence]
            assert part.start == whole.start + len(tokens[part.sequence])
            tokens[part.sequence] += part.tokens
            outputs[part.sequence].update(part.outputs)
    for whole in step.segments:
        assert tuple(tokens[whole.sequence]) == whole.tokens
        assert outputs[whole.sequence] == whole.outputs


def test_decodes_are_in_the_first_call() -> None:
    step = Step((segment(0, 0, range(100)), segment(1, 50, [7]), segment(2, 60, [8])), 2)
    call, rest = split_off(step, 16)
    assert [(part.sequence, len(part.tokens)) for part in call.segments] == [(1, 1), (2, 1), (0, 14)]
    assert rest is not None
    assert rest.total_tokens == 86


@given(fixed_s=st.floats(0, 0.01), token_s=st.floats(1e-6, 1e-2))
def test_calls_come_to_take_about_15_ms(fixed_s: float, token_s: float) -> None:
    size = CallSize()
    for _ in range(200):
        size.observe(1, 0.001)
        size.observe(size.tokens, fixed_s + token_s * size.tokens)
    assert size.tokens % 16 == 0
    took_s = fixed_s + token_s * size.tokens
    assert took_s <= CALL_S * 1.01 or size.tokens == 16
    assert took_s + 16 * token_s >= 0.8 * CALL_S or size.tokens == 512


def test_what_such_a_runtime_says_of_itself(as_on_a_gpu: Runtime) -> None:
    capabilities = as_on_a_gpu.capabilities
    assert capabilities.lanes == 1
    assert capabilities.interruptible is Interruptible.CALLS
    assert as_on_a_gpu.describe()["gpu_layers"] == -1


def test_a_wish_to_stop_is_heard_between_calls(
    as_on_a_gpu: Runtime, open_lane: OpenLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    synchronised: list[int] = []
    original = Context.synchronize

    def synchronize(context: Context) -> None:
        original(context)
        synchronised.append(context.length(0))

    monkeypatch.setattr(Context, "synchronize", synchronize)
    lane = open_lane(as_on_a_gpu, context=4096)
    monkeypatch.setattr(library.AbortFlag, "set", lambda _flag: pytest.fail("a GPU would not look at it"))
    lane.open(0, Sampling())
    handle = lane.submit(Step((segment(0, 0, [5] * 2000),), 2))
    while not synchronised:
        time.sleep(0.001)
    lane.interrupt(handle)
    result = await_result(as_on_a_gpu, lane)
    assert result.interrupted
    assert 0 < result.segments[0].consumed < 2000
    assert result.segments[0].consumed == synchronised[-1] == lane.kv_used(), "nothing of what ran is lost"


def test_early_outputs_of_a_stopped_step_are_kept(
    as_on_a_gpu: Runtime, open_lane: OpenLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = open_lane(as_on_a_gpu, sequences=2, context=4096)
    lane.open(0, Sampling())
    lane.open(1, Sampling())
    ended: list[int] = []
    original = Context.synchronize
    monkeypatch.setattr(Context, "synchronize", lambda context: ended.append(1) or original(context))
    long = Segment(0, 0, (5,) * 2000, {3: Output.TOKEN, 1999: Output.TOKEN})
    handle = lane.submit(Step((long, segment(1, 0, [6])), 2))
    while not ended:
        time.sleep(0.001)
    lane.interrupt(handle)
    result = await_result(as_on_a_gpu, lane)
    assert result.interrupted
    assert set(result.segments[0].tokens) == {3}
    assert result.segments[0].consumed > 3
    assert set(result.segments[1].tokens) == {0}
    more = run_step(as_on_a_gpu, lane, segment(0, result.segments[0].consumed, [5] * 10))
    assert more.error is None


def test_words_are_those_of_whole_calls(runtime: Runtime, as_on_a_gpu: Runtime, open_lane: OpenLane) -> None:
    prompt = runtime.tokenizer.encode("The first thing to know about bees is that")
    said = []
    for each in (runtime, as_on_a_gpu):
        lane = open_lane(each)
        lane.open(0, Sampling())
        said.append(generate(each, lane, prompt, 12))
    assert said[0] == said[1]
