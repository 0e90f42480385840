"""Whether a prompt is split where somebody waits for it: the piece whose late gaps are the least loss."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dlfp_edge.control.estimate import Cost
from dlfp_edge.control.split import LONGEST_STALL_S, unsplit


def lane(token_s: float, small_s: float = 0.0) -> Cost:
    """A lane in which a step costs `small_s` beside its tokens."""
    cost = Cost(0.014, token_s, batched=True)
    for size in range(12):
        for _ in range(40):
            cost.observe(0, 3 << size >> 1, small_s + token_s * (3 << size >> 1))
    return cost


def late_s(cost: Cost, decode_s: float, target_s: float, prompt: int, piece: int) -> float:
    """The summed length of the gaps, of those that can be above the target, in pieces of that size."""
    whole, rest = divmod(prompt, piece)
    gaps = [decode_s + size * cost.rate(size) for size in [piece] * whole + [rest] * bool(rest)]
    return sum(gap_s for gap_s in gaps if cost.margin * gap_s > target_s)


CASES = {
    "token_s": st.floats(1e-4, 0.02),
    "small_s": st.floats(0.0, 0.02),
    "decode_s": st.floats(0.001, 0.2),
    "slowdown": st.floats(1.0, 3.0),
    "prompt": st.integers(1, 1200),
    "least": st.sampled_from([1, 1, 4, 16]),
    "most": st.sampled_from([64, 512, 2048]),
}


@given(**CASES)
@example(token_s=1 / 64, small_s=0.0, decode_s=0.1875, slowdown=2.25, prompt=25, least=16, most=64)
@example(token_s=0.002, small_s=0.0, decode_s=0.02, slowdown=1.0, prompt=513, least=1, most=512)
def test_no_piece_would_lose_less(
    token_s: float, small_s: float, decode_s: float, slowdown: float, prompt: int, least: int, most: int
) -> None:
    cost, target_s = lane(token_s, small_s), slowdown * decode_s
    piece = unsplit(cost, decode_s, target_s, prompt, least, most)
    if cost.margin * (decode_s + least * cost.rate(least)) <= target_s:
        assert piece == 0
        return
    assert least <= piece <= most
    assert piece == least or piece * cost.rate(piece) <= LONGEST_STALL_S
    sizes = [size for size in range(least, min(prompt, most) + 1) if size * cost.rate(size) <= LONGEST_STALL_S]
    legal = [size for size in sizes if not 0 < prompt % size < least]  # a rest must be long enough to be a piece too
    best_s = min((late_s(cost, decode_s, target_s, prompt, size) for size in legal), default=None)
    assume(best_s is not None)
    assert late_s(cost, decode_s, target_s, prompt, piece) == pytest.approx(best_s)
