"""What the KV cache of one lane holds, kept beside llama.cpp, which does not say how many cells are in use."""

from __future__ import annotations

from dataclasses import dataclass


class _Run:
    """Cells written by one sequence one after another; forks may refer to its beginning."""

    __slots__ = ("forked",)

    def __init__(self) -> None:
        self.forked = False


@dataclass(slots=True)
class _Piece:
    """The part [start, end) of a sequence, in positions, that lies in one run. It begins where the run begins."""

    run: _Run
    start: int
    end: int


class CellLedger:
    """Counts cells per sequence and in all, cells shared by a fork once."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[_Piece]] = {}

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._pieces

    def open(self, sequence: int) -> None:
        """Begin an empty sequence."""
        self._pieces[sequence] = []

    def close(self, sequence: int) -> None:
        """Forget a sequence."""
        self._pieces.pop(sequence, None)

    def held(self, sequence: int) -> int:
        """Cells the sequence holds."""
        pieces = self._pieces[sequence]
        return pieces[-1].end if pieces else 0

    def append(self, sequence: int, count: int) -> None:
        """Add `count` cells at the end of a sequence."""
        if count == 0:
            return
        pieces = self._pieces[sequence]
        if pieces and not pieces[-1].run.forked:
            pieces[-1].end += count
        else:
            held = self.held(sequence)
            pieces.append(_Piece(_Run(), held, held + count))

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` cells of a sequence."""
        kept = [piece for piece in self._pieces[sequence] if piece.start < length]
        if kept:
            kept[-1].end = min(kept[-1].end, length)
        self._pieces[sequence] = kept

    def fork(self, source: int, target: int, length: int) -> None:
        """Let the empty `target` share the first `length` cells of `source`."""
        shared = [piece for piece in self._pieces[source] if piece.start < length]
        for piece in shared:
            piece.run.forked = True
        self._pieces[target] = [_Piece(piece.run, piece.start, min(piece.end, length)) for piece in shared]

    def used(self) -> int:
        """Cells in use."""
        longest: dict[int, int] = {}
        for pieces in self._pieces.values():
            for piece in pieces:
                key = id(piece.run)
                longest[key] = max(longest.get(key, 0), piece.end - piece.start)
        return sum(longest.values())
