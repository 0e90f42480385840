"""Hidden states of a text: the same however it is cut, beside whatever else runs, and none that is not in the cache."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from contract_harness import Bench, prompt

from dlfp_edge.runtime import Output, Pooling, Segment

COUNT = 4


@pytest.fixture
def embedding(bench: Bench) -> Bench:
    if bench.capabilities.pooling is not Pooling.MEAN:
        pytest.skip("this runtime gives no hidden states of every token")
    return bench


def segment(bench: Bench, sequence: int, tokens: list[int]) -> Segment:
    """The next tokens of a sequence with a hidden state at each."""
    start = bench.held[sequence]
    outputs = dict.fromkeys(range(start, start + len(tokens)), Output.EMBEDDING)
    return Segment(sequence, start, tuple(tokens), outputs)


def pooled(bench: Bench, sequence: int, tokens: list[int], sizes: list[int]) -> npt.NDArray[np.float32]:
    """The sum over a text that is cut into chunks of these sizes and a rest."""
    bench.open(sequence)
    sums = []
    for chunk in bench.cut(tokens, sizes):
        outcome = bench.run(segment(bench, sequence, list(chunk))).segments[0]
        assert outcome.embedding is not None
        assert not outcome.tokens
        sums.append(outcome.embedding)
    bench.close(sequence)
    total: npt.NDArray[np.float32] = np.sum(sums, axis=0)
    return total


def alike(first: npt.NDArray[np.float32], second: npt.NDArray[np.float32]) -> float:
    """Cosine of the angle between them."""
    return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))


@pytest.mark.parametrize("sizes", [[], [16, 16], [33], [8, 24, 9]])
def test_any_chunking_gives_one_embedding(embedding: Bench, sizes: list[int]) -> None:
    tokens = prompt(embedding.runtime, 60)
    whole = pooled(embedding, 0, tokens, [])
    assert alike(pooled(embedding, 1, tokens, sizes), whole) > 0.999
    assert alike(pooled(embedding, 1, prompt(embedding.runtime, 60, 9), sizes), whole) < 0.999


def test_a_text_beside_a_decode_and_another_prompt(embedding: Bench) -> None:
    bench, tokens = embedding, prompt(embedding.runtime, 40, 3)
    alone = pooled(bench, 0, tokens, [])
    fresh = bench.generate(0, prompt(bench.runtime, 24, 1), 1)
    bench.close(0)
    bench.open(0)
    first = bench.prefill(0, prompt(bench.runtime, 24, 1))
    bench.open(1)
    bench.open(2)
    mixed = bench.run(
        bench.segment(0, [first]),
        segment(bench, 1, tokens),
        bench.segment(2, prompt(bench.runtime, 16, 5), output=False),
    )
    said, text, other = mixed.segments
    assert text.embedding is not None
    assert alike(text.embedding, alone) > 0.999
    assert said.embedding is None
    assert other.embedding is None
    bench.same([first, *said.tokens.values()], fresh)


def test_an_interrupted_text_counts_no_token_twice(embedding: Bench) -> None:
    bench, tokens = embedding, prompt(embedding.runtime, 60)
    whole = pooled(bench, 0, tokens, [])
    bench.open(1)
    handle = bench.submit(segment(bench, 1, tokens))
    bench.lane.interrupt(handle)
    result = bench.result(handle)
    total = np.zeros_like(whole)
    for outcome in result.segments:
        if outcome.embedding is not None:
            total += outcome.embedding
    rest = tokens[bench.held[1] :]
    if rest:
        outcome = bench.run(segment(bench, 1, rest)).segments[0]
        assert outcome.embedding is not None
        total += outcome.embedding
    assert np.allclose(np.linalg.norm(total), np.linalg.norm(whole), rtol=0.02)
    assert alike(total, whole) > 0.999
