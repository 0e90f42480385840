"""Exact mode: the words depend on nothing but the prompt."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from llama_harness import OpenLane, await_result, decode, next_token, run_step, segment

from dlfp_edge.runtime import Lane, Runtime, Sampling, Step

LENGTH, WORDS = 48, 2


@pytest.fixture(scope="module")
def prompt(exact_runtime: Runtime) -> list[int]:
    return (exact_runtime.tokenizer.encode("The history of the city begins by the river. ") * 20)[:150]


@pytest.fixture
def lane(exact_runtime: Runtime, open_lane: OpenLane) -> Lane:
    opened = open_lane(exact_runtime, sequences=4, context=4 * 1280)
    for sequence in range(4):
        opened.open(sequence, Sampling())
    return opened


def chunked(runtime: Runtime, lane: Lane, prompt: Sequence[int], chunk: int, beside: int) -> list[int]:
    """Words after a prompt given in chunks, while `beside` other sequences prefill or decode in the same steps."""
    position, others = 0, 0
    while position < len(prompt):
        size = chunk if len(prompt) - position - chunk >= 8 else len(prompt) - position
        last = position + size == len(prompt)
        extra = [segment(1 + index, others, prompt[others : others + 8], wanted=False) for index in range(beside)]
        result = run_step(runtime, lane, segment(0, position, prompt[position : position + size], last), *extra)
        position, others = position + size, others + 8
    first = next_token(result)
    return [first, *decode(runtime, lane, position, first, WORDS)]


def test_capabilities(exact_runtime: Runtime) -> None:
    capabilities = exact_runtime.capabilities
    assert capabilities.schedule_invariant
    assert capabilities.threads_invariant
    assert capabilities.min_chunk == 8
    assert not capabilities.fork


def test_chunks_and_company_change_nothing(exact_runtime: Runtime, lane: Lane, prompt: list[int]) -> None:
    words = []
    for chunk, beside in ((LENGTH, 0), (33, 0), (8, 1), (17, 3)):
        words.append(chunked(exact_runtime, lane, prompt[:LENGTH], chunk, beside))
        for sequence in range(4):
            lane.truncate(sequence, 0)
    assert all(other == words[0] for other in words)


def test_cells_are_divided_evenly(exact_runtime: Runtime, lane: Lane) -> None:
    assert lane.sequence_context == 1280
    result = run_step(exact_runtime, lane, segment(0, 0, [5] * 1281, wanted=False))
    assert result.error is not None
    assert lane.kv_used() == 0


def test_interrupted_and_resumed_is_as_if_nothing_had_happened(
    exact_runtime: Runtime, lane: Lane, prompt: list[int]
) -> None:
    """Four sequences in one step, interrupted in one of the first and in one of the last."""
    size = 70
    prompts = [prompt[offset : offset + size] for offset in (0, 3, 5, 7)]
    whole = run_step(exact_runtime, lane, *[segment(s, 0, tokens) for s, tokens in enumerate(prompts)])
    expected = {index: next_token(whole, index) for index in range(4)}
    for share in (0.3, 0.9):
        for sequence in range(4):
            lane.truncate(sequence, 0)
        handle = lane.submit(Step(tuple(segment(s, 0, tokens) for s, tokens in enumerate(prompts)), 2))
        time.sleep(share * (whole.completed - whole.submitted))
        lane.interrupt(handle)
        result = await_result(exact_runtime, lane)
        held = [part.consumed for part in result.segments]
        assert lane.kv_used() == sum(held)
        tokens = {s: next_token(result, s) for s, n in enumerate(held) if n == size}
        rests = [segment(s, n, prompts[s][n:]) for s, n in enumerate(held) if n < size]
        if rests:
            resumed = run_step(exact_runtime, lane, *rests)
            tokens |= {rest.sequence: next_token(resumed, index) for index, rest in enumerate(rests)}
        assert tokens == expected


def test_many_decodes_at_once_say_what_each_says_alone(exact_runtime: Runtime, open_lane: OpenLane) -> None:
    """So many that llama.cpp would take another kernel for them than for a few."""
    count, words = 9, 16
    lane = open_lane(exact_runtime, sequences=count, context=count * 256)
    prompts = [exact_runtime.tokenizer.encode(f"Chapter {n}. The road to the {n}th village led") for n in range(count)]

    def start(sequence: int) -> int:
        lane.open(sequence, Sampling(ignore_eos=True))
        return next_token(run_step(exact_runtime, lane, segment(sequence, 0, prompts[sequence])))

    alone = {}
    for n, prompt in enumerate(prompts):
        said = [start(n)]
        for index in range(words):
            said.append(next_token(run_step(exact_runtime, lane, segment(n, len(prompt) + index, [said[-1]]))))
        alone[n] = said
        lane.close(n)
    together = {n: [start(n)] for n in range(count)}
    for index in range(words):
        steps = [segment(n, len(prompts[n]) + index, [together[n][-1]]) for n in range(count)]
        result = run_step(exact_runtime, lane, *steps)
        for n in range(count):
            together[n].append(next_token(result, n))
    assert together == alone
