"""Prompts for a server whose tokenizer is not at hand: its ids without their texts, or words instead of ids."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dlfp_edge.errors import UsageError

_PIECE = re.compile(r"\s*\S+|\s+$")

_WORDS = (
    "about after again air all along also always and another any are around ask away back because before between book "
    "but by call came can car change city close come could country cut day different do down each earth end enough "
    "even every example eye face far father few find first food for form found four from get give go good great group "
    "grow hand hard has have head help here high him home house how idea important in into is it just keep kind know "
    "land large last later learn leave left letter life light like line list little long look made make many may mean "
    "mile more most mountain move much must my name near need never new next night now number of off often old on once"
)


class IdsOnly:
    """Implements `dlfp_edge.runtime.Tokenizer` for a server that tells how many ids it has, and no more."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def encode(self, text: str) -> list[int]:
        """Raises UsageError: only the model's own tokenizer knows."""
        raise UsageError("this workload has texts, and the endpoint takes token ids: give its model's GGUF as --model")

    def token_bytes(self, token: int) -> bytes:
        """Nothing is known of any token's text."""
        return b""

    def spell(self, data: bytes) -> list[int]:
        """Raises UsageError, as `encode`."""
        return self.encode("")

    def is_end(self, token: int) -> bool:
        """Nothing is known of end tokens; a server told to ignore them goes on."""
        return False


class Words:
    """Implements `dlfp_edge.runtime.Tokenizer` with words for tokens: a server makes about as many tokens of them."""

    def __init__(self) -> None:
        self._pieces = [f" {word}" for word in _WORDS.split()]
        self._ids = {piece: index for index, piece in enumerate(self._pieces)}
        self.vocabulary = len(self._pieces)

    def encode(self, text: str) -> list[int]:
        """Numbers of the text's words, each with the blanks before it."""
        return [self._number(piece) for piece in _PIECE.findall(text)]

    def token_bytes(self, token: int) -> bytes:
        """The word of a number."""
        return self._pieces[token].encode()

    def spell(self, data: bytes) -> list[int]:
        """As `encode`, of UTF-8 text."""
        return self.encode(data.decode())

    def is_end(self, token: int) -> bool:
        """No word ends an answer."""
        return False

    def text_of(self, tokens: Sequence[int]) -> str:
        """The text that numbers stand for."""
        return "".join(self._pieces[token] for token in tokens)

    def _number(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]
