"""What a lane gives away and takes back: KV cells in host memory, sequences that change hands, cells it still has."""

from __future__ import annotations

import pytest
from contract_harness import Bench, prompt

from dlfp_edge.runtime import Content, Rollback, Sampling, Step, Transfer

COUNT = 4


@pytest.fixture
def copying(bench: Bench) -> Bench:
    """A bench on a runtime that can copy KV cells."""
    if not bench.capabilities.save:
        pytest.skip("this runtime cannot copy KV cells")
    return bench


def transfer(bench: Bench, sequence: int, start: int, end: int, content: Content | None = None) -> Content | None:
    """Run a copy to its end."""
    result = bench.result(bench.lane.submit(Step((), 1, Transfer(sequence, start, end, content))))
    assert result.error is None
    return result.content


def put_away(bench: Bench, sequence: int, cells: int) -> list[tuple[int, int, Content]]:
    """Copy a sequence out from its end, a few cells at a time, and drop them."""
    slices = []
    while end := bench.held[sequence]:
        start = max(0, end - cells)
        content = transfer(bench, sequence, start, end)
        assert content is not None
        assert content.nbytes > 0
        slices.append((start, end, content))
        bench.truncate(sequence, start)
    return slices


@pytest.mark.parametrize("cells", [16, 40, 100])
def test_a_sequence_goes_on_as_if_it_had_never_been_away(copying: Bench, cells: int) -> None:
    bench, tokens = copying, prompt(copying.runtime, 72, 1)
    undisturbed = bench.generate(0, tokens, 2 * COUNT)
    bench.close(0)
    first = bench.generate(0, tokens, COUNT)
    slices = put_away(bench, 0, cells)
    assert bench.lane.kv_used() == 0
    other = bench.generate(1, prompt(bench.runtime, 50, 2), COUNT)
    for start, end, content in reversed(slices):
        transfer(bench, 0, start, end, content)
    assert bench.lane.kv_used() == bench.held[0] + bench.held[1]
    bench.close(1)
    assert len(other) == COUNT + 1
    assert bench.decode(0, first[-1], COUNT) == undisturbed[COUNT:]


def test_cells_that_are_not_there_are_not_copied(copying: Bench) -> None:
    bench = copying
    bench.generate(0, prompt(bench.runtime, 40), COUNT)
    held = bench.held[0]
    content = transfer(bench, 0, 0, held)
    for wrong in (
        Transfer(0, 0, held + 1),
        Transfer(0, 8, 8),
        Transfer(0, -1, 8),
        Transfer(3, 0, 8),
        Transfer(0, 0, held, content),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            bench.lane.submit(Step((), 1, wrong))
    assert bench.lane.kv_used() == held


def test_a_sequence_in_a_copy_is_left_alone(copying: Bench) -> None:
    bench = copying
    if bench.runtime.clock.name != "virtual" or bench.capabilities.decode_s == 0.0:
        pytest.skip("a copy is done sooner than anybody could come between")
    bench.generate(0, prompt(bench.runtime, 40), COUNT)
    handle = bench.lane.submit(Step((), 1, Transfer(0, 0, 8)))
    with pytest.raises(ValueError, match="in flight"):
        bench.lane.close(0)
    with pytest.raises(ValueError, match="in flight"):
        bench.lane.truncate(0, 0)
    bench.result(handle)


def test_a_runtime_that_cannot_copy_says_so(bench: Bench) -> None:
    if bench.capabilities.save:
        pytest.skip("this runtime can")
    bench.generate(0, prompt(bench.runtime, 40), COUNT)
    with pytest.raises(ValueError, match="copy"):
        bench.lane.submit(Step((), 1, Transfer(0, 0, 8)))


def test_an_adopted_sequence_keeps_its_cells_and_draws_anew(bench: Bench) -> None:
    tokens, more = prompt(bench.runtime, 40, 1), prompt(bench.runtime, 24, 2)
    drawn = Sampling(temperature=1.0, seed=7, ignore_eos=True)
    bench.open(0, drawn)
    bench.run(bench.segment(0, tokens, output=False))
    first = bench.decode(0, bench.prefill(0, more), COUNT)
    bench.close(0)
    bench.generate(0, tokens, 0)
    bench.lane.adopt(0, drawn)
    assert bench.lane.kv_used() == len(tokens)
    bench.same(bench.decode(0, bench.prefill(0, more), COUNT), first)


def test_what_a_lane_says_it_keeps(bench: Bench) -> None:
    tokens = prompt(bench.runtime, 200)
    bench.generate(0, tokens, 0)
    assert bench.lane.keeps(0, 0)
    assert bench.lane.keeps(0, 200)
    if bench.capabilities.rollback is Rollback.ANY:
        assert bench.lane.keeps(0, 1)
    if bench.capabilities.rollback is Rollback.NONE:
        assert not bench.lane.keeps(0, 199)
    if not bench.lane.keeps(0, 40):
        bench.truncate(0, 0)
        tokens = tokens[40:]
    else:
        bench.truncate(0, 40)
    bench.run(bench.segment(0, tokens[bench.held[0] :], output=False))
