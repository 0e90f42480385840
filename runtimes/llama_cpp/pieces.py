"""What every token of a vocabulary stands for: to spell a text, and to find tokens by the character they begin with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import numpy as np
import numpy.typing as npt

from dlfp_edge.errors import UsageError

Ids = npt.NDArray[np.intp]


class Pieces:
    """The bytes of each token id; none for control tokens."""

    def __init__(self, data: Sequence[bytes], byte_tokens: Set[int], end_tokens: Set[int], model_name: str) -> None:
        """Raises UsageError for a vocabulary that lacks a byte: it cannot spell every text."""
        self.data = data
        self.end_tokens = np.array(sorted(end_tokens), np.intp)
        self._ids: dict[bytes, int] = {}
        spelled = [token for token, piece in enumerate(data) if piece and token not in end_tokens]
        for token in sorted(spelled, key=lambda token: token in byte_tokens):
            self._ids.setdefault(data[token], token)
        self._longest = _longest(self._ids)
        if any(bytes((byte,)) not in self._ids for byte in range(256)):
            raise UsageError(f"the vocabulary of {model_name} cannot spell every text: its answers can have no grammar")
        points = np.array([_first_character(data[token]) for token in spelled], np.int64)
        order = np.argsort(points, kind="stable")
        self._points = points[order]
        self._tokens = np.array(spelled, np.intp)[order]

    def spell(self, data: bytes) -> list[int]:
        """Token ids that stand for exactly these bytes: at each place the longest that fits."""
        tokens, at = [], 0
        while at < len(data):
            for length in range(min(self._longest[data[at]], len(data) - at), 0, -1):
                token = self._ids.get(data[at : at + length])
                if token is not None:
                    break
            tokens.append(self._ids[data[at : at + length]])
            at += length
        return tokens

    def beginning_with(self, ranges: Iterable[tuple[int, int]]) -> Ids:
        """Tokens whose first character is in one of the ranges of code points, and those that hold only part of one."""
        found = [self._between(first, last) for first, last in ranges]
        return np.concatenate([*found, self._between(_PART, _PART)])

    def parts(self) -> Ids:
        """Tokens that do not begin with a whole character."""
        return self._between(_PART, _PART)

    def _between(self, first: int, last: int) -> Ids:
        low, high = np.searchsorted(self._points, (first, last + 1))
        return self._tokens[low:high]


_PART = -1


def _first_character(piece: bytes) -> int:
    """The code point a token begins with, or `_PART` where that is not whole."""
    lead = piece[0]
    size = 1 if lead < 0x80 else 2 if 0xC0 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4
    try:
        return ord(piece[:size].decode())
    except (UnicodeDecodeError, TypeError):
        return _PART


def _longest(ids: Iterable[bytes]) -> list[int]:
    """The most bytes of a token, by its first byte."""
    longest = [0] * 256
    for piece in ids:
        longest[piece[0]] = max(longest[piece[0]], len(piece))
    return longest
