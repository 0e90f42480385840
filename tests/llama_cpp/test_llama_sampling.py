"""Which token comes next, and that it depends on nothing it should not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_harness import OpenLane, await_result, decode, generate, load_options, next_token, run_step, segment

from dlfp_edge.runtime import Runtime, Sampling, Step
from dlfp_edge.runtimes.llama_cpp import provider
from dlfp_edge.runtimes.llama_cpp.logprobs import largest, log_softmax
from dlfp_edge.runtimes.llama_cpp.sampler import Sampler

PROMPT = "The best thing about a rainy day is"


def sample(runtime: Runtime, open_lane: OpenLane, sampling: Sampling, count: int = 6, threads: int = 1) -> list[int]:
    lane = open_lane(runtime, context=256)
    lane.open(0, sampling)
    return generate(runtime, lane, runtime.tokenizer.encode(PROMPT), count, threads)


def test_a_seed_fixes_the_words(runtime: Runtime, open_lane: OpenLane) -> None:
    first = sample(runtime, open_lane, Sampling(temperature=1.5, seed=1, top_k=1000, top_p=1.0, min_p=0.0))
    again = sample(runtime, open_lane, Sampling(temperature=1.5, seed=1, top_k=1000, top_p=1.0, min_p=0.0))
    other = sample(runtime, open_lane, Sampling(temperature=1.5, seed=2, top_k=1000, top_p=1.0, min_p=0.0))
    assert first == again
    assert first != other


def test_greedy_takes_what_a_chain_of_one_candidate_takes(runtime: Runtime, open_lane: OpenLane) -> None:
    greedy = sample(runtime, open_lane, Sampling(temperature=0.0))
    narrow = sample(runtime, open_lane, Sampling(temperature=1.0, top_k=1, seed=3))
    assert greedy == narrow


def test_a_repeat_penalty_changes_the_words(runtime: Runtime, open_lane: OpenLane) -> None:
    prompt = runtime.tokenizer.encode("la la la la la la la la la la")
    words = []
    for penalty in (1.0, 2.0):
        lane = open_lane(runtime, context=256)
        lane.open(0, Sampling(temperature=0.01, top_k=1, seed=3, repeat_penalty=penalty))
        words.append(generate(runtime, lane, prompt, 8, threads=1))
    assert words[0] != words[1]


def test_ignored_end_tokens_never_come(runtime: Runtime, open_lane: OpenLane) -> None:
    lane = open_lane(runtime, sequences=2, context=256)
    lane.open(0, Sampling())
    lane.open(1, Sampling(ignore_eos=True))
    prompt = runtime.tokenizer.encode("Hi<end_of_turn>\n")
    result = run_step(runtime, lane, segment(0, 0, prompt), segment(1, 0, prompt))
    ends = [runtime.tokenizer.is_end(next_token(result, index)) for index in (0, 1)]
    assert ends[1] is False


def test_logprobs_are_the_models_own_whatever_bias_and_temperature(runtime: Runtime, open_lane: OpenLane) -> None:
    tokens = runtime.tokenizer.encode(PROMPT)
    found = []
    for sampling in (
        Sampling(logprobs=5),
        Sampling(logprobs=5, temperature=2.0, top_k=0, seed=1),
        Sampling(logprobs=5, logit_bias={1000: 100}),
    ):
        lane = open_lane(runtime, context=256)
        lane.open(0, sampling)
        result = run_step(runtime, lane, segment(0, 0, tokens))
        found.append((next_token(result), *result.segments[0].logprobs.values()))
    (_, greedy), (_, drawn), (forced_token, forced) = found
    assert greedy.top == drawn.top == forced.top
    assert forced_token == 1000
    assert forced.chosen < forced.top[-1][1], "a forced token is as unlikely as it was"


def test_a_bias_of_minus_100_forbids_whatever_the_model_says() -> None:
    logits, ends = np.array([500.0, -1000.0, -2000.0], np.float32), np.array([], np.intp)
    assert Sampler(Sampling(logit_bias={0: -99}), 3, ends).choose(None, 0, logits.copy()).token == 0
    assert Sampler(Sampling(logit_bias={0: -100}), 3, ends).choose(None, 0, logits.copy()).token == 1


@given(
    values=st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 7.0]), min_size=1, max_size=3000), count=st.integers(0, 20)
)
def test_largest_is_what_a_sort_gives(values: list[float], count: int) -> None:
    order = sorted(range(len(values)), key=lambda index: (-values[index], index))[:count]
    assert largest(np.array(values, np.float32), count) == [(index, values[index]) for index in order]


def test_probabilities_add_up_to_one() -> None:
    logits = np.random.default_rng(0).normal(0, 10, 262_144).astype(np.float32)
    assert np.exp(log_softmax(logits).astype(np.float64)).sum() == pytest.approx(1, abs=1e-4)
    assert log_softmax(np.array([1e4, 0, -1e4], np.float32)).tolist() == [0, -1e4, -2e4]


def test_an_interrupted_step_draws_nothing(runtime: Runtime, open_lane: OpenLane) -> None:
    sampling = Sampling(temperature=1.5, seed=7, top_k=1000, top_p=1.0, min_p=0.0)
    expected = sample(runtime, open_lane, sampling, count=3)
    lane = open_lane(runtime, context=256)
    lane.open(0, sampling)
    prompt = runtime.tokenizer.encode(PROMPT)
    interrupted = 0
    for _ in range(20):
        lane.interrupt(lane.submit(Step((segment(0, 0, prompt),), 1)))
        interrupted += await_result(runtime, lane).interrupted
        if not interrupted:
            pytest.skip("no step was slow enough to interrupt")
        if interrupted == 3:
            break
        lane.truncate(0, 0)
    assert generate(runtime, lane, prompt, 3, threads=1) == expected


@pytest.mark.parametrize("context", [100, 600])
def test_words_do_not_depend_on_decode_threads(runtime: Runtime, open_lane: OpenLane, context: int) -> None:
    assert runtime.capabilities.threads_invariant
    lane = open_lane(runtime, context=1024)
    lane.open(0, Sampling(ignore_eos=True))
    prompt = (runtime.tokenizer.encode("It was a dark and stormy night. ") * 80)[:context]
    run_step(runtime, lane, segment(0, 0, prompt[:-1], wanted=False), threads=2)
    words = []
    for threads in (1, 2):
        words.append(decode(runtime, lane, context - 1, prompt[-1], 8, threads))
        lane.truncate(0, context - 1)
    assert words[0] == words[1]


def test_with_flash_attention_decodes_have_one_thread_count(tiny_model: Path, open_lane: OpenLane) -> None:
    runtime = provider.load(load_options(tiny_model, flash_attention="on"))
    lane: Any = open_lane(runtime, context=256)
    lane.open(0, Sampling())
    run_step(runtime, lane, segment(0, 0, range(8)), threads=2)
    assert lane._context._threads == 2
    run_step(runtime, lane, segment(0, 8, [1]), threads=2)
    assert lane._context._threads == runtime.capabilities.decode_threads == 1
    lane.shut()
    runtime.close()
