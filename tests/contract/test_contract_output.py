"""However a request is cut and mixed, its output is the same; and what is kept, dropped or shared is what was asked."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from contract_harness import Bench, Case, by_sequence, lane_spec, only_token, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from dlfp_edge.runtime import PREVIOUS, LaneSpec, Output, Runtime, Sampling, Segment

COUNT = 4
SIZES = [[64], [33, 20], [8, 16, 32], [1, 9, 1, 40], [63, 1]]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_any_chunking_gives_the_output_of_one_chunk(bench: Bench, sizes: list[int]) -> None:
    tokens = prompt(bench.runtime, 96)
    whole = bench.generate(0, tokens, COUNT)
    bench.same(bench.generate(1, tokens, COUNT, sizes), whole)


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), max_size=30), length=st.integers(1, 200))
def test_any_chunking_at_all(runtime_factory: Case, sizes: list[int], length: int) -> None:
    if runtime_factory.real:
        pytest.skip("takes real time; a handful of chunkings is tried above")
    runtime = runtime_factory.load()
    bench = Bench(runtime, runtime.open_lane(lane_spec()))
    tokens = prompt(runtime, length)
    bench.same(bench.generate(1, tokens, COUNT, sizes), bench.generate(0, tokens, COUNT))


def test_mixed_steps_give_each_sequence_its_own_output(bench: Bench) -> None:
    """Three sequences decode while the prompt of a fourth goes by in chunks."""
    runtime = bench.runtime
    alone = {}
    for sequence in range(4):
        alone[sequence] = bench.generate(0, prompt(runtime, 40 + 8 * sequence, sequence), 3 + sequence)
        bench.close(0)
    mixed: dict[int, list[int]] = {}
    for sequence in range(3):
        bench.open(sequence)
        mixed[sequence] = [bench.prefill(sequence, prompt(runtime, 40 + 8 * sequence, sequence))]
    bench.open(3)
    for chunk in bench.cut(prompt(runtime, 64, 3), [16, 24]):
        decodes = [bench.segment(sequence, [mixed[sequence][-1]]) for sequence in range(3)]
        result = by_sequence(bench.run(*decodes, bench.segment(3, chunk)))
        for sequence in range(3):
            mixed[sequence].append(only_token(result[sequence]))
        mixed[3] = [only_token(result[3])]
    for sequence in range(4):
        wanted = alone[sequence][: len(mixed[sequence])]
        bench.same(mixed[sequence], wanted)


def test_outputs_at_several_positions(bench: Bench) -> None:
    """Each is what the model says after that position."""
    tokens = prompt(bench.runtime, 48)
    bench.open(0)
    wanted = dict.fromkeys((15, 31, 47), Output.TOKEN)
    several = bench.run(Segment(0, 0, tuple(tokens), wanted)).segments[0].tokens
    assert set(several) == set(wanted)
    for position in wanted:
        bench.open(1)
        bench.same(bench.prefill(1, tokens[: position + 1]), several[position])
        bench.close(1)


@pytest.mark.parametrize("decoders", [2, 4])
def test_decoders_in_one_step_on_the_threads_asked_for(bench: Bench, decoders: int) -> None:
    ids = {}
    for sequence in range(decoders):
        bench.open(sequence)
        ids[sequence] = [bench.prefill(sequence, prompt(bench.runtime, 24, sequence))]
    for threads in (1, bench.capabilities.prefill_threads, 1):
        steps = [bench.segment(sequence, [ids[sequence][-1]]) for sequence in range(decoders)]
        result = bench.run(*steps, threads=threads)
        assert result.step.threads == threads
        assert threads_used(bench) <= {threads}
        for sequence in range(decoders):
            ids[sequence].append(only_token(by_sequence(result)[sequence]))
    for sequence in range(decoders):
        bench.close(sequence)
        bench.open(sequence)
        first = bench.prefill(sequence, prompt(bench.runtime, 24, sequence))
        if bench.capabilities.threads_invariant:
            bench.same(bench.decode(sequence, first, 3), ids[sequence])


def threads_used(bench: Bench) -> set[int]:
    """The thread counts that llama.cpp has in force, whatever a step's width; of other runtimes nothing is known."""
    context = getattr(bench.lane, "_context", None)
    if context is None:
        return set()
    from dlfp_edge.runtimes.llama_cpp.library import library

    return {library().llama_n_threads(context.pointer), library().llama_n_threads_batch(context.pointer)}


def test_truncated_and_redone(bench: Bench) -> None:
    tokens, other = prompt(bench.runtime, 64, 1), prompt(bench.runtime, 64, 2)
    first = bench.generate(0, tokens, COUNT)
    if not bench.lane.keeps(0, 40):
        pytest.skip("this runtime can drop no part of a sequence")
    bench.truncate(0, 40)
    assert bench.lane.kv_used() == 40
    bench.same(bench.decode(0, bench.prefill(0, tokens[40:]), COUNT), first)
    bench.truncate(0, 24)
    branched = bench.decode(0, bench.prefill(0, other[24:]), COUNT)
    bench.same(branched, bench.generate(1, [*tokens[:24], *other[24:]], COUNT))
    bench.truncate(0, 0)
    bench.same(bench.decode(0, bench.prefill(0, tokens), COUNT), first)


def test_a_closed_sequence_leaves_nothing_to_the_next_of_its_id(bench: Bench) -> None:
    tokens = prompt(bench.runtime, 32, 1)
    fresh = bench.generate(0, tokens, COUNT)
    bench.close(0)
    bench.open(0)
    bench.run(bench.segment(0, prompt(bench.runtime, 50, 2), output=False))
    bench.close(0)
    assert bench.lane.kv_used() == 0
    bench.same(bench.generate(0, tokens, COUNT), fresh)


def test_a_fork_shares_cells_and_then_goes_its_own_way(bench: Bench) -> None:
    if not bench.capabilities.fork:
        pytest.skip("this runtime cannot fork")
    runtime = bench.runtime
    prefix, tails = prompt(runtime, 40, 0), [prompt(runtime, 24, salt) for salt in (1, 2)]
    alone = []
    for tail in tails:
        alone.append(bench.generate(0, [*prefix, *tail], COUNT))
        bench.close(0)
    bench.forked = True
    bench.open(0)
    bench.run(bench.segment(0, [*prefix, *tails[0][:8]], output=False))
    if not bench.lane.keeps(0, len(prefix)):
        pytest.skip("this runtime can share whole sequences only")
    bench.open(1)
    bench.lane.fork(0, 1, len(prefix))
    bench.held[1] = len(prefix)
    assert bench.lane.kv_used() == 48
    bench.same(bench.decode(1, bench.prefill(1, tails[1]), COUNT), alone[1])
    bench.same(bench.decode(0, bench.prefill(0, tails[0][8:]), COUNT), alone[0])
    used = bench.lane.kv_used()
    bench.close(0)
    assert bench.lane.kv_used() == used - (len(tails[0]) + COUNT), "the prefix is still held by the fork"
    bench.close(1)
    assert bench.lane.kv_used() == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_seed_gives_the_same_tokens_again(bench: Bench, temperature: float) -> None:
    ids = []
    for seed in (7, 7, 8):
        bench.open(0, Sampling(temperature=temperature, seed=seed, ignore_eos=True))
        ids.append(bench.decode(0, bench.prefill(0, prompt(bench.runtime, 24)), 8))
        bench.close(0)
    assert ids[0] == ids[1]
    assert (ids[1] == ids[2]) == (temperature == 0.0)
    assert not any(bench.runtime.tokenizer.is_end(token) for token in ids[0])


def test_a_bias_forbids_a_token_or_says_nothing_else(bench: Bench) -> None:
    tokens = prompt(bench.runtime, 24)
    likeliest = bench.generate(0, tokens, 0)[0]
    bench.close(0)
    bench.open(0, Sampling(logit_bias={likeliest: -100}))
    other = bench.prefill(0, tokens)
    assert other != likeliest
    bench.close(0)
    for temperature in (0.0, 1.0):
        bench.open(0, Sampling(temperature=temperature, logit_bias={11: 100, likeliest: -100}))
        assert bench.decode(0, bench.prefill(0, tokens), 3) == [11] * 4
        bench.close(0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_may_end_after_min_tokens_and_not_before(bench: Bench, temperature: float) -> None:
    tokenizer = bench.runtime.tokenizer
    end = next(token for token in range(tokenizer.vocabulary) if tokenizer.is_end(token))
    bench.open(0, Sampling(temperature=temperature, logit_bias={end: 100}, min_tokens=3))
    ids = bench.decode(0, bench.prefill(0, prompt(bench.runtime, 24)), 3)
    assert [tokenizer.is_end(token) for token in ids] == [False, False, False, True]
    bench.close(0)
    bench.open(0, Sampling(temperature=temperature, logit_bias={end: 100}, ignore_eos=True))
    assert not any(map(tokenizer.is_end, bench.decode(0, bench.prefill(0, prompt(bench.runtime, 24)), 3)))


@pytest.mark.parametrize("count", [0, 1, 20])
def test_logprobs_are_those_of_the_likeliest_tokens(bench: Bench, count: int) -> None:
    bench.open(0, Sampling(logprobs=count))
    bench.open(1)
    tokens = prompt(bench.runtime, 24)
    asked, other = bench.run(bench.segment(0, tokens), bench.segment(1, tokens)).segments
    assert other.logprobs == {}
    (position,) = asked.tokens
    assert set(asked.logprobs) == {position}
    chosen, top = asked.logprobs[position].chosen, asked.logprobs[position].top
    assert chosen <= 0
    assert len(top) == len(dict(top)) == count
    values = [value for _, value in top]
    assert values == sorted(values, reverse=True)
    assert sum(map(math.exp, values)) <= 1 + 1e-4
    if count:
        assert top[0] == (asked.tokens[position], chosen)


def test_a_token_still_on_the_device_continues_its_sequence(bench: Bench) -> None:
    if bench.capabilities.depth < 2:
        pytest.skip("this runtime takes one step at a time")
    tokens = prompt(bench.runtime, 24)
    plain = bench.generate(0, tokens, 6)
    bench.open(1)
    pending = [bench.submit(bench.segment(1, tokens))]
    ids, position = [], len(tokens)
    for _ in range(6):
        pending.append(bench.submit(Segment(1, position, (PREVIOUS,), {position: Output.TOKEN})))
        ids.append(only_token(bench.result(pending.pop(0)).segments[0]))
        position += 1
    ids.append(only_token(bench.result(pending.pop(0)).segments[0]))
    bench.same(ids, plain)


def test_two_lanes_give_what_one_gives(runtime: Runtime, open_bench: Callable[[LaneSpec], Bench]) -> None:
    if runtime.capabilities.lanes < 2:
        pytest.skip("this runtime has one lane")
    one, two = open_bench(lane_spec("one")), open_bench(lane_spec("two"))
    tokens = prompt(runtime, 48)
    one.same(one.generate(0, tokens, COUNT), two.generate(0, tokens, COUNT))


def test_text_goes_to_tokens_and_back(runtime: Runtime) -> None:
    text = "Wörter, \U0001f600 and a line\nbreak"
    tokens = runtime.tokenizer.encode(text)
    assert text in b"".join(map(runtime.tokenizer.token_bytes, tokens)).decode()
    assert all(0 <= token < runtime.tokenizer.vocabulary for token in tokens)
