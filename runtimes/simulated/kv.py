"""The simulated KV cache: each sequence's actual tokens, in cells that forked sequences share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dlfp_edge.grammar import Matcher
from dlfp_edge.runtime import Logprobs

from .choice import Chooser
from .tokens import EMPTY_HISTORY, ByteTokenizer, extend_history

_TOKENIZER = ByteTokenizer()


@dataclass(slots=True)
class _Sequence:
    chooser: Chooser
    text: Matcher | None
    tokens: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    sampled: tuple[int, int] | None = None
    first_output: int | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """Cells that were copied out: their tokens and the hashes of the history after each."""

    tokens: tuple[int, ...]
    hashes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of host memory, as if a cell had 64."""
        return 64 * len(self.tokens)


class KvCache:
    """The sequences of one lane. A cell is a number that is never used twice; shared cells carry a count."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._sequences: dict[int, _Sequence] = {}
        self._next_cell = 0
        self._extra_holders: dict[int, int] = {}

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._sequences

    def length(self, sequence: int) -> int:
        """Cells the sequence holds."""
        return len(self._sequences[sequence].tokens)

    def tokens(self, sequence: int) -> tuple[int, ...]:
        """What the sequence's cells hold, in order."""
        return tuple(self._sequences[sequence].tokens)

    def open(self, sequence: int, chooser: Chooser) -> None:
        """Start an empty sequence."""
        self._sequences[sequence] = _Sequence(chooser, chooser.start)

    def close(self, sequence: int) -> None:
        """Forget the sequence, if there is one."""
        if sequence in self._sequences:
            self.truncate(sequence, 0)
            del self._sequences[sequence]

    def adopt(self, sequence: int, chooser: Chooser) -> None:
        """Let another answer begin in the sequence."""
        held = self._sequences[sequence]
        held.chooser, held.text, held.sampled, held.first_output = chooser, chooser.start, None, None

    def copy_out(self, sequence: int, start: int, end: int) -> Saved:
        """Copy cells [start, end)."""
        held = self._sequences[sequence]
        return Saved(tuple(held.tokens[start:end]), tuple(held.hashes[start:end]))

    def copy_in(self, sequence: int, saved: Saved) -> None:
        """Put copied cells at the end of the sequence, whatever is there. The caller has checked that there is room."""
        held = self._sequences[sequence]
        held.tokens += saved.tokens
        held.hashes += saved.hashes
        self._add_cells(held, len(saved.tokens))

    def append(self, sequence: int, tokens: Sequence[int]) -> None:
        """Fill new cells. The caller has checked that there is room."""
        held = self._sequences[sequence]
        held.hashes += extend_history(held.hashes[-1] if held.hashes else EMPTY_HISTORY, tokens)
        held.tokens += tokens
        self._add_cells(held, len(tokens))

    def sample(self, sequence: int, position: int) -> int:
        """The token that follows the cell at `position`."""
        held = self._sequences[sequence]
        if held.first_output is None:
            held.first_output = position
        token = held.chooser.token(held.hashes[position], position - held.first_output, held.text)
        if held.text is not None:
            held.text = held.text.after(_TOKENIZER.token_bytes(token))
        held.sampled = (position, token)
        return token

    def hidden(self, sequence: int, position: int) -> npt.NDArray[np.float32]:
        """A made-up hidden state: four numbers from the history."""
        history = self._sequences[sequence].hashes[position]
        return np.array([((history >> shift) & 0xFFFF) / 0x8000 - 1 for shift in (0, 16, 32, 48)], np.float32)

    def logprobs(self, sequence: int, position: int, token: int) -> Logprobs | None:
        """How likely it was that `token` follows the cell at `position`, where the sequence is asked for that."""
        held = self._sequences[sequence]
        return held.chooser.logprobs(held.hashes[position], token)

    def sampled_at(self, sequence: int, position: int) -> int | None:
        """The token last sampled, if that was at `position`."""
        sampled = self._sequences[sequence].sampled
        return sampled[1] if sampled and sampled[0] == position else None

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` cells."""
        held = self._sequences[sequence]
        self._release(held.cells[length:])
        del held.tokens[length:], held.hashes[length:], held.cells[length:]

    def fork(self, source: int, target: int, length: int) -> None:
        """Let the empty `target` share the first `length` cells of `source`."""
        origin, copy = self._sequences[source], self._sequences[target]
        copy.tokens = origin.tokens[:length]
        copy.hashes = origin.hashes[:length]
        copy.cells = origin.cells[:length]
        for cell in copy.cells:
            self._extra_holders[cell] = self._extra_holders.get(cell, 0) + 1

    def _add_cells(self, held: _Sequence, count: int) -> None:
        held.cells += range(self._next_cell, self._next_cell + count)
        self._next_cell += count
        self.used += count

    def _release(self, cells: list[int]) -> None:
        self.used -= len(cells)
        if not self._extra_holders:
            return
        for cell in cells:
            others = self._extra_holders.pop(cell, 0)
            if others:
                self.used += 1
            if others > 1:
                self._extra_holders[cell] = others - 1
