"""The ledger of KV cells against a naive one that keeps every cell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlfp_edge.runtimes.llama_cpp.cells import CellLedger

SEQUENCES = st.integers(0, 2)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("append"), SEQUENCES, st.integers(0, 20)),
        st.tuples(st.just("truncate"), SEQUENCES, st.integers(0, 40)),
        st.tuples(st.just("close"), SEQUENCES, st.just(0)),
        st.tuples(st.just("fork"), st.tuples(SEQUENCES, SEQUENCES), st.integers(0, 40)),
    ),
    max_size=30,
)


@given(CHANGES)
def test_it_counts_like_one_that_keeps_every_cell(changes: list[tuple[str, object, int]]) -> None:
    ledger, cells, fresh = CellLedger(), {s: list[int]() for s in range(3)}, iter(range(10_000))
    for sequence in cells:
        ledger.open(sequence)
    for name, where, amount in changes:
        if name == "fork":
            source, target = where  # type: ignore[misc]
            if source == target:
                continue
            ledger.close(target)
            ledger.open(target)
            length = min(amount, len(cells[source]))
            ledger.fork(source, target, length)
            cells[target] = cells[source][:length]
        elif name == "append":
            ledger.append(where, amount)  # type: ignore[arg-type]
            cells[where] = cells[where] + [next(fresh) for _ in range(amount)]  # type: ignore[index]
        else:
            if name == "close":
                ledger.close(where)  # type: ignore[arg-type]
                ledger.open(where)  # type: ignore[arg-type]
            ledger.truncate(where, min(amount, len(cells[where])))  # type: ignore[arg-type,index]
            cells[where] = cells[where][:amount]  # type: ignore[index]
        for sequence, kept in cells.items():
            assert ledger.held(sequence) == len(kept)
        assert ledger.used() == len({cell for kept in cells.values() for cell in kept})
