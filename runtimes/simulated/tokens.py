"""A toy vocabulary, and tokens that are a function of everything before them.

A sampled token is a hash of the sequence's whole history. So every schedule of the same request gives the same output,
and a token that was lost, doubled or misplaced changes all that follow.
"""

from __future__ import annotations

from collections.abc import Iterable

VOCABULARY = 1000
END = 256
_FIRST_WORD = END + 1
_WORDS = VOCABULARY - _FIRST_WORD
_MASK = (1 << 64) - 1
_MULTIPLIER = 0x9E3779B97F4A7C15
EMPTY_HISTORY = 0x243F6A8885A308D3


class ByteTokenizer:
    """Bytes are ids 0 to 255, then the end token, then made-up words that only the simulated model says."""

    vocabulary = VOCABULARY

    def encode(self, text: str) -> list[int]:
        """The UTF-8 bytes of `text`."""
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        if token < END:
            return bytes((token,))
        return b"" if token == END else b" w%d" % token

    def spell(self, data: bytes) -> list[int]:
        return list(data)

    def is_end(self, token: int) -> bool:
        return token == END


def extend_history(history: int, tokens: Iterable[int]) -> list[int]:
    """The hash of the history after each of `tokens`."""
    hashes = []
    for token in tokens:
        history = ((history ^ token) * _MULTIPLIER + 1) & _MASK
        history ^= history >> 29
        hashes.append(history)
    return hashes


def drawn_number(history: int, salt: int) -> int:
    """A number of 64 bits for a history."""
    return ((history ^ salt) * _MULTIPLIER) & _MASK


def ends(history: int, salt: int, probability: float) -> bool:
    """Whether a history is one of those after which the end token follows."""
    return (drawn_number(history, salt) & 0xFFFFF) < probability * 0x100000


def next_token(history: int, salt: int, end_probability: float) -> int:
    """The token that follows a history: a word, or the end token with `end_probability`."""
    if ends(history, salt, end_probability):
        return END
    return _FIRST_WORD + (drawn_number(history, salt) >> 32) % _WORDS
