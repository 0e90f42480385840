"""Which segments share a call of llama.cpp."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.runtime import Segment, Step
from dlfp_edge.runtimes.llama_cpp.parts import MOST_FOREIGN_CELLS, TILE_ROWS, parts


def step(*segments: tuple[int, int]) -> Step:
    """A step of (start, tokens), each of a sequence of its own."""
    return Step(tuple(Segment(number, start, (1,) * count) for number, (start, count) in enumerate(segments)), 2)


def counts(made: list[Step]) -> list[list[int]]:
    return [[len(segment.tokens) for segment in part.segments] for part in made]


@pytest.mark.parametrize(
    ("segments", "flash_attention", "calls"),
    [
        ([(100, 1), (0, 12)], True, [[1, 12]]),
        ([(2000, 1), (0, 12)], True, [[1, 12]]),
        ([(100, 1), (0, 200)], True, [[1, 200]]),
        ([(2000, 1), (0, 200)], True, [[1], [200]]),
        ([(2000, 1), (0, 200)], False, [[1, 200]]),
        ([(1200, 1), (1200, 1), (900, 36), (0, 220)], True, [[1, 1], [36], [220]]),
        ([(1200, 1)] * 8, True, [[1] * 8]),
        ([(0, 512)], True, [[512]]),
    ],
)
def test_flash_attention_wants_crowded_steps_apart(
    segments: list[tuple[int, int]], flash_attention: bool, calls: list[list[int]]
) -> None:
    assert counts(parts(step(*segments), exact=False, flash_attention=flash_attention)) == calls


def test_exact_output_wants_them_apart_always() -> None:
    assert counts(parts(step((5, 1), (0, 12), (7, 1)), exact=True, flash_attention=False)) == [[1, 1], [12]]
    many = step(*[(n, 1) for n in range(9)], (0, 12))
    assert counts(parts(many, exact=True, flash_attention=False)) == [[1] * 7, [1] * 2, [12]]


@given(
    segments=st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 300)), min_size=1, max_size=9),
    exact=st.booleans(),
    flash_attention=st.booleans(),
)
def test_every_segment_is_in_one_call(segments: list[tuple[int, int]], exact: bool, flash_attention: bool) -> None:
    whole = step(*segments)
    made = parts(whole, exact=exact, flash_attention=flash_attention)
    assert sorted(s.sequence for part in made for s in part.segments) == list(range(len(segments)))
    assert all(part.threads == whole.threads for part in made)
    if flash_attention and not exact:
        for part in made:
            longest = max(part.segments, key=lambda segment: len(segment.tokens))
            foreign = sum(segment.end for segment in part.segments) - longest.end
            assert len(longest.tokens) == 1 or part.total_tokens < TILE_ROWS or foreign <= MOST_FOREIGN_CELLS
