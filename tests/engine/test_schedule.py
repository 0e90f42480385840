"""The planner: pure, so checked on any state that can be drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlfp_edge.background import Floor
from dlfp_edge.schedule import Limits, Plan, Work, plan


@st.composite
def works(draw: st.DrawFn) -> list[Work]:
    found = []
    for sequence in range(draw(st.integers(0, 12))):
        foreground, decode = draw(st.booleans()), draw(st.booleans())
        remaining = 1 if decode else draw(st.integers(1, 3000))
        due = draw(st.booleans()) if foreground and decode else True
        ahead = due or draw(st.booleans())
        found.append(Work(sequence, foreground, draw(st.integers(0, 500)), remaining, decode, due, ahead))
    return sorted(found, key=lambda work: not work.foreground)


limits = st.builds(
    Limits,
    cap=st.one_of(st.none(), st.integers(1, 500)),
    isolated=st.integers(1, 2048),
    largest_step=st.integers(64, 2048),
    min_chunk=st.sampled_from([1, 8, 40]),
    tile=st.sampled_from([1, 16]),
    decode_only=st.booleans(),
    hold=st.booleans(),
    owed=st.sampled_from([0, 64]),
    decode_weight=st.sampled_from([1.0, 6.0]),
)


@given(works=works(), limits=limits)
def test_a_step_is_legal_and_keeps_its_promises(works: list[Work], limits: Limits) -> None:
    step = plan(works, limits)
    if step is None:
        waiting = [w for w in works if (w.foreground or not limits.hold) and (not w.decode or w.due or w.ahead)]
        short = [w for w in waiting if not w.decode and w.remaining > limits.largest_step]
        assert not waiting or short, "there was work and no step"
        return
    parts = {work.sequence: count for work, count in step.parts}
    assert len(parts) == len(step.parts), "two segments of one sequence"
    assert 0 < step.total <= limits.largest_step
    assert all(1 <= count <= work.remaining for work, count in step.parts)
    due = [w for w in works if w.foreground and w.decode and w.due]
    assert all(w.sequence in parts for w in due), "a due decode was left out"
    if limits.hold:
        assert all(work.foreground for work, _ in step.parts)
    decodes = sum(1 for work, _ in step.parts if work.foreground and work.decode)
    if due and limits.decode_only:
        assert decodes == len(step.parts)
    if due and limits.cap is not None and not step.floor:
        assert step.total - decodes <= max(limits.cap, 2 * limits.min_chunk - 1 if limits.min_chunk > 1 else 0)
    for work, count in step.parts:
        if not work.decode and work.remaining >= limits.min_chunk:
            left = work.remaining - count
            assert count >= limits.min_chunk
            assert left == 0 or left >= limits.min_chunk, "a tail too short to be legal"


@given(works=works(), limits=limits, decodes=st.integers(1, 40))
@example(
    works=[Work(0, False, 0, 1, True), Work(1, False, 0, 16, False)],
    limits=Limits(1, 1, 64, min_chunk=8),
    decodes=20,
)
@example(
    works=[Work(0, True, 0, 4000, False), Work(6, False, 0, 1, True), Work(9, False, 0, 80, False)],
    limits=Limits(None, 1, 2029, min_chunk=40),
    decodes=1,
)
def test_what_is_owed_is_paid_beside_any_number_of_decodes(works: list[Work], limits: Limits, decodes: int) -> None:
    """A twentieth of each such step at least, and no less than the background would have without."""
    readers = [Work(100 + number, True, 10, 1, True) for number in range(decodes)]
    works = readers + [w for w in works if not (w.foreground and w.decode)]
    limits = replace(limits, owed=64, hold=False, decode_only=False, decode_weight=1.0)
    step, usual = plan(works, limits), plan(works, replace(limits, owed=0))
    assert step is not None
    assert usual is not None
    wanted = sum(work.remaining for work in works if not work.foreground)
    paid = _background(step)
    if all(w.decode or w.remaining >= 2 * limits.min_chunk for w in works if not w.foreground):
        assert paid >= min(wanted, step.total / 20) or step.total + limits.min_chunk > limits.largest_step
    if not any(w.foreground and not w.decode for w in works):
        assert paid >= _background(usual)


def _background(step: Plan) -> int:
    return sum(count for work, count in step.parts if not work.foreground)


@given(works=works(), limits=limits)
def test_a_foreground_prefill_alone_shares_its_steps_with_nobody(works: list[Work], limits: Limits) -> None:
    works = [w for w in works if not (w.foreground and w.decode)]
    step = plan(works, limits)
    if step is not None and not limits.owed and any(w.foreground for w in works):
        assert all(work.foreground for work, _ in step.parts)


def test_the_budget_goes_to_foreground_prefill_then_decodes_then_background_prefill() -> None:
    decoder = Work(0, True, 10, 1, True)
    prompt = Work(1, True, 0, 20, False)
    waves = [Work(2 + i, False, 50, 1, True) for i in range(8)]
    document = Work(20, False, 0, 1000, False)
    step = plan([decoder, prompt, *waves, document], Limits(cap=30, isolated=512, largest_step=2048))
    assert step is not None
    assert [(work.sequence, count) for work, count in step.parts] == [
        (0, 1),
        (1, 20),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 1),
        (6, 1),
        (20, 5),
    ]


def test_what_is_owed_comes_out_of_foreground_prompts_and_not_out_of_the_target() -> None:
    decoder = Work(0, True, 10, 1, True)
    prompt = Work(1, True, 0, 500, False)
    document = Work(2, False, 0, 1000, False)

    def tokens(cap: int) -> tuple[list[tuple[int, int]], bool]:
        step = plan([decoder, prompt, document], Limits(cap=cap, isolated=512, largest_step=2048, tile=16, owed=64))
        assert step is not None
        return [(work.sequence, count) for work, count in step.parts], step.floor

    assert tokens(cap=46) == ([(0, 1), (2, 46)], False)
    assert tokens(cap=15) == ([(0, 1), (2, 15)], False), "a tile with the decode"
    assert tokens(cap=4) == ([(0, 1), (2, 15)], True), "less is no efficient piece"


def test_background_alone_fills_a_whole_tile_and_every_decode_rides_along() -> None:
    waves = [Work(i, False, 50, 1, True) for i in range(3)]
    document = Work(9, False, 0, 1000, False)
    step = plan([*waves, document], Limits(cap=None, isolated=130, largest_step=2048, tile=16))
    assert step is not None
    assert step.total == 128
    assert len(step.parts) == 4


def test_the_floor_remembers_its_window_alone() -> None:
    """Also where nobody asks what is owed, as in lanes: hours of steps must not pile up."""
    floor = Floor()
    for step in range(20_000):
        floor.observe(0.1 * step, 0.1)
    assert len(floor._steps) <= 102
    assert not floor.owed(2000.0, waiting=True)


@pytest.mark.parametrize(("remaining", "chunks"), [(40, [8, 8, 8, 8, 8]), (15, [15]), (17, [8, 9]), (30, [8, 8, 14])])
def test_a_small_cap_cuts_a_prompt_into_the_shortest_legal_chunks(remaining: int, chunks: list[int]) -> None:
    decoder, taken = Work(0, True, 10, 1, True), list[int]()
    while remaining:
        step = plan(
            [decoder, Work(1, True, 0, remaining, False)], Limits(3, isolated=512, largest_step=2048, min_chunk=8)
        )
        assert step is not None
        taken.append(step.total - 1)
        remaining -= taken[-1]
    assert taken == chunks
